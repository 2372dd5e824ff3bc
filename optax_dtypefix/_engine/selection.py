"""Decide whether a patch is applied."""

from __future__ import annotations

import sys
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
      waits_for: a module to wait for; when that module is imported, decide again, or wrap those
        targets that it brings.
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


def decide(
    patch: Patch, release: Release, package: str, *, opted_in: bool, judge: Judge
) -> Decision:
    """Decide on one patch that is not disabled.

    Args:
      patch: the patch.
      release: the installed release of the package, which is imported.
      package: its name. Targets of other packages may be absent.
      opted_in: whether the user named the patch, in the environment or in ``apply``.
      judge: decides on a patch whose targets are there.
    """
    if patch.opt_in and not opted_in:
        return Decision(State.DISABLED, NOT_OPTED_IN)
    targets = tuple(target for target in patch.targets if release.within(target.releases))
    own = [target for target in targets if target.package == package]
    absent = [target for target in own if defining_module(target) is None]
    if patch.allow_missing_targets and not release.tested and len(absent) < len(own):
        targets, absent = tuple(target for target in targets if target not in absent), []
    if absent or not own:
        return _absent(absent, wanted=release.tested and bool(patch.faults_on(release)))
    decision = judge(patch, targets)
    others = (target.package for target in decision.targets if target.package != package)
    return decision._replace(waits_for=next((o for o in others if o not in sys.modules), None))


def _absent(targets: list[Target], *, wanted: bool) -> Decision:
    for target in targets:
        module = unloaded_module(target)
        if module is not None:
            return Decision(State.PENDING, f"{module} {NOT_IMPORTED}", waits_for=module)
    gone = ", ".join(dict.fromkeys(target.qualname for target in targets))
    absent = f"no {gone}" if gone else "none of the functions of this patch"
    return Decision(State.MISSING, f"this release has {absent}", warn=wanted)
