"""Decide whether a patch is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NamedTuple

from .locate import defining_module, unloaded_module
from .state import NOT_IMPORTED, State

if TYPE_CHECKING:
    from .patch import Fault, Patch, Target
    from .release import Release

    Judge = Callable[[Patch, tuple[Target, ...]], "Decision"]


NOT_OPTED_IN = "opt-in: add it to OPTAX_DTYPEFIX_ENABLE"


class Decision(NamedTuple):
    """What to do with a patch, and why.

    Attributes:
      state: the state to record; ``applied`` means: apply ``targets``.
      reason: why, as text.
      targets: what to wrap.
      waits_for: a module to wait for; when that module is imported, decide again.
      warn: whether to warn the user, who wanted a patch that cannot be applied.
      probed: the faults whose abstract reproducers led to the decision. Once the patch is applied,
        the reproducers must find nothing.
    """

    state: State
    reason: str
    targets: tuple[Target, ...] = ()
    waits_for: str | None = None
    warn: bool = False
    probed: tuple[Fault, ...] = ()


def decide(patch: Patch, release: Release, *, opted_in: bool, judge: Judge) -> Decision:
    """Decide on one patch that is not disabled.

    Args:
      patch: the patch.
      release: the installed release of the package, which is imported.
      opted_in: whether the user named the patch, in the environment or in ``apply``.
      judge: decides on a patch whose targets are there.
    """
    if patch.opt_in and not opted_in:
        return Decision(State.DISABLED, NOT_OPTED_IN)
    targets = tuple(target for target in patch.targets if release.within(target.releases))
    absent = [target for target in targets if defining_module(target) is None]
    if patch.allow_missing_targets and not release.tested and len(absent) < len(targets):
        targets, absent = tuple(target for target in targets if target not in absent), []
    if absent or not targets:
        return _absent(absent, wanted=release.tested and bool(patch.faults_on(release)))
    return judge(patch, targets)


def _absent(targets: list[Target], *, wanted: bool) -> Decision:
    for target in targets:
        module = unloaded_module(target)
        if module is not None:
            return Decision(State.PENDING, f"{module} {NOT_IMPORTED}", waits_for=module)
    gone = ", ".join(dict.fromkeys(target.qualname for target in targets))
    absent = f"no {gone}" if gone else "none of the functions of this patch"
    return Decision(State.MISSING, f"this release has {absent}", warn=wanted)
