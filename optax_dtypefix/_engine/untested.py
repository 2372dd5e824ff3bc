"""Apply patches to a release that no table knows: by probes before, and checks after."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING

from .._diagnosis.probes import decide_by_probes, unsupported, verify_fix
from .._tally import paused
from .application import forget_traces
from .locate import defining_module, find
from .state import Decision, State

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .application import Patches
    from .patch import Patch, Target
    from .release import Release


def apply_by_probes(
    patches: Patches, ids: Collection[str], release: Release
) -> dict[str, Decision]:
    """Apply patches with the replacements of a release, else with those of a later one.

    Returns:
      What is to be reported.
    """
    news: dict[str, Decision] = {}
    unfit = ids
    for variant in (release, release.as_later):
        for patch_id, decision in _try(patches, unfit, variant).items():
            if _fits(decision) or patch_id not in news:
                news[patch_id] = decision
        unfit = [patch_id for patch_id, decision in news.items() if not _fits(decision)]
    patches.record({patch_id: news[patch_id] for patch_id in unfit})  # Why the first did not fit.
    return news


def _fits(decision: Decision) -> bool:
    return decision.state not in (State.UNSUPPORTED, State.MISSING)


def _try(patches: Patches, ids: Collection[str], release: Release) -> dict[str, Decision]:
    """Apply patches, and revert those that do not fix what their probes found."""
    if ids:
        forget_traces()  # Probes must see stock functions, and no trace of patched ones.
        with paused(stock_only=True):
            decisions = patches.decide(ids, release, _by_probes)
        forget_traces()  # Those of the probes.
    news = patches.record(decisions if ids else {})
    for patch_id in news.keys() - patches.suspended():
        decision, slot = news[patch_id], patches.slots[patch_id]
        with paused():  # Not locked: it imports.
            news[patch_id] = verify_fix(decision, sys.modules[patches.package])
        if news[patch_id] is not decision:
            with patches.change():
                if slot.decision is decision:
                    slot.decision = news[patch_id]
    return news


def _by_probes(package: str, release: Release, patch: Patch, targets: Sequence[Target]) -> Decision:
    untested = f"{package} {release} is not a tested release"
    for target in targets:
        parameters = (text.partition(" ") for text in target.known_parameters)
        known = {name for name, _, releases in parameters if release.within(releases)}
        stock = find(defining_module(target) or "", target.qualname)
        other = known and known ^ inspect.signature(stock).parameters.keys()
        if other:
            names = ", ".join(sorted(other))
            return unsupported(f"{untested}; {target.qualname} has other parameters: {names}")
    # First those faults that such a release had last: to look for others takes time.
    likely = sorted(patch.faults, key=lambda fault: not release.within(fault.releases))
    return decide_by_probes(likely, sys.modules[package], untested)
