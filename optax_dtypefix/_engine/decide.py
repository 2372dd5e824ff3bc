"""Decide on a patch: by the table on a tested release, by what judges it on another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Sequence

from .._errors import summarize
from .locate import defining_module, place_of, unloaded_module
from .state import NOT_IMPORTED, NOT_OPTED_IN, Decision, State

if TYPE_CHECKING:
    from .patch import Patch, Target
    from .release import Release
    from .when_called import WhenCalled

    Judge = Callable[[str, Release, Patch, Sequence[Target]], Decision]
    """``judge(package, release, patch, targets)``: decides on a patch whose targets are there."""


def decide(  # noqa: PLR0913
    package: str,
    release: Release,
    patch: Patch,
    judge: Judge,
    *,
    layer: Callable[[Target], WhenCalled],
    wanted: bool,
) -> Decision:
    """Decide on a patch of a package.

    Args:
      package: its name.
      release: its release.
      patch: the patch.
      judge: decides if nothing else does.
      layer: makes the layer of a target.
      wanted: whether the user named the patch, as an opt-in patch must be.
    """
    if patch.opt_in and not wanted:
        return Decision(State.DISABLED, NOT_OPTED_IN)
    targets = [target for target in patch.targets if release.within(target.releases)]
    own = [target for target in targets if target.package == package]
    absent = [target for target in targets if defining_module(target) is None]
    missing = [target for target in absent if target in own]
    if patch.allow_missing_targets and not release.tested and len(missing) < len(own):
        targets, missing = [target for target in targets if target not in missing], []
    unloaded = next(filter(None, map(unloaded_module, missing or absent)), None)
    if own and not missing:
        decision = judge(package, release, patch, targets)
        layers = {place_of(t): layer(t) for t in targets if decision.state is State.APPLIED}
        return decision._replace(layers=layers, waits_for=unloaded)
    if missing and unloaded:
        return Decision(State.PENDING, f"{unloaded} {NOT_IMPORTED}", waits_for=unloaded)
    names = ", ".join(dict.fromkeys(target.qualname for target in missing))
    lacks = f"no {names}" if names else "none of the functions of this patch"
    has_fault = release.tested and bool(patch.faults_on(release))
    return Decision(State.MISSING, f"this release has {lacks}", warn=has_fault)


def by_table(package: str, release: Release, patch: Patch, _: Sequence[Target]) -> Decision:
    """Decide by the faults that a tested release has."""
    faults = ", ".join(fault.id for fault in patch.faults_on(release))
    if faults:
        return Decision(State.APPLIED, f"{package} {release} has: {faults}")
    none = f"{package} {release} has none of the faults of this patch"
    return Decision(State.NOT_NEEDED, none)


def failure(error: Exception) -> Decision:
    """Return the decision on a patch that raised an error."""
    return Decision(State.FAILED, summarize(error), warn=True)
