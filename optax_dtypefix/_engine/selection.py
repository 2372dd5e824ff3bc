"""Whether a patch acts on the installed optax: by the table on a tested release, else by probe."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .._text import summarize
from .locate import defining_module, unknown_parameters, unloaded_module
from .report import State

if TYPE_CHECKING:
    from types import ModuleType

    from .._settings import Settings
    from .patch import Fault, Patch, Reproducer, Target
    from .release import Release


NOT_ASKED_FOR = "opt-in: name it in OPTAX_DTYPEFIX_ENABLE"


@dataclasses.dataclass(frozen=True)
class Decision:
    """What is to become of a patch, and why.

    Attributes:
      state: the state to record; ``applied`` means: apply ``targets``.
      reason: why, in words.
      targets: what to wrap.
      awaits: a module whose import to wait for, then decide again.
      trouble: whether something wanted cannot be done, which the user is told.
      probed: the abstract demonstrations that the decision rests on. They must be quiet once the
        patch acts.
    """

    state: State
    reason: str
    targets: tuple[Target, ...] = ()
    waits_for: str | None = None
    warn: bool = False
    probed: tuple[Fault, ...] = ()


def decide(
    patch: Patch, package: ModuleType, release: Release, settings: Settings, *, requested: bool
) -> Decision:
    """Decide on one patch, for an imported package.

    Args:
      patch: the patch.
      package: what the patch is for.
      release: the installed release.
      settings: what the shell asked for.
      requested: whether the program named this patch in ``apply``.
    """
    disabled_reason = settings.disabled_reason(patch.id)
    if disabled_reason is not None:
        return Decision(State.DISABLED, disabled_reason)
    if patch.opt_in and not requested and not settings.opted_in(patch.id):
        return Decision(State.DISABLED, NOT_ASKED_FOR)
    targets = tuple(target for target in patch.targets if release.within(target.releases))
    absent = [target for target in targets if defining_module(target) is None]
    if patch.allow_missing_targets and not release.tested and len(absent) < len(targets):
        targets, absent = tuple(target for target in targets if target not in absent), []
    if absent or not targets:
        return _absent(absent, wanted=release.tested and bool(patch.faults_on(release)))
    if release.tested:
        return _by_table(patch, release, targets)
    return _by_probe(patch, package, release, targets)


def _absent(targets: list[Target], *, wanted: bool) -> Decision:
    for target in targets:
        module = unloaded_module(target)
        if module is not None:
            return Decision(State.PENDING, f"{module} is not imported yet", waits_for=module)
    names = ", ".join(dict.fromkeys(target.qualname for target in targets))
    reason = f"this optax has no {names or 'function that it is for'}"
    return Decision(State.MISSING, reason, warn=wanted)


def _by_table(patch: Patch, release: Release, present: tuple[Target, ...]) -> Decision:
    faults = patch.faults_on(release)
    if not faults:
        return Decision(State.NOT_NEEDED, f"optax {release} has none of its faults")
    names = ", ".join(fault.id for fault in faults)
    return Decision(State.APPLIED, f"optax {release} has: {names}", present)


def _by_probe(
    patch: Patch, package: ModuleType, release: Release, present: tuple[Target, ...]
) -> Decision:
    what = f"optax {release} is not a tested release"
    strangers = [name for target in present for name in unknown_parameters(target)]
    if strangers:
        words = ", ".join(dict.fromkeys(strangers))
        return _unsupported(f"{what}, and has parameters not known here: {words}")
    probed: list[Fault] = []
    for fault in patch.faults:
        probe = fault.reproduce if fault.abstract else fault.probe
        probed += [fault] if fault.abstract else []
        if probe is None:
            continue
        try:
            shows = _shows(probe, package)
        except Exception as error:  # The probe met an optax that it does not know.
            return _unsupported(f"{what}, and the probe could not run: {summarize(error)}")
        if shows:  # One fault is enough to know: tracing them all would hold up the import.
            reason = f"{what}; the probe found: {fault.id}"
            return Decision(State.APPLIED, reason, present, probed=tuple(probed))
    return Decision(State.NOT_NEEDED, f"{what}; the probe found none of its faults")


def verify_fix(decision: Decision, package: ModuleType) -> Decision:
    """The decision on a patch that acts by now; another one if it does not mend what was probed.

    The replacement may not fit an optax that it was never tested on.
    """
    for fault in decision.probed:
        try:
            outcome = fault.reproduce(package)
        except Exception as error:  # Of the patch, or the fault itself: it is not mended.
            outcome = summarize(error)
        if outcome is not None:
            return _unsupported(f"{decision.reason}; the patch does not mend it: {outcome}")
    return decision


def _unsupported(reason: str) -> Decision:
    return Decision(State.UNSUPPORTED, reason, warn=True)


def _shows(probe: Reproducer, package: ModuleType) -> bool:
    try:
        return probe(package) is not None
    except (AttributeError, ImportError):
        raise
    except Exception:  # Raising is how many of the faults show.
        return True
