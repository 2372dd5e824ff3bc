"""Apply patches to a release that no table knows: by probes before, and checks after."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

from .._errors import summarize, warn_or_raise
from .._tally import paused
from .application import Application, forget_traces
from .locate import parameters_of
from .lock import LOCK
from .patch import NotInReleaseError
from .selection import Decision
from .state import State
from .wrapper import stock_only

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from .patch import Fault, Patch, Stock, Target
    from .release import Release


class ProbedApplication(Application):
    """One application of some patches to an untested release."""

    def apply(self, ids: Iterable[str]) -> None:
        """Apply those patches that are neither applied nor switched off.

        The replacements of a later release come second.
        """
        left: dict[str, Decision | None] = dict.fromkeys(self._list_wanted(ids))
        for release in (self._release, self._release.as_later):
            self._record(self._decide([*left], release))
            for patch_id, first in left.items():
                self._verify(patch_id, first)
            unfit = (State.UNSUPPORTED, State.MISSING)
            left = {i: decision for i, decision in self.outcome.items() if decision.state in unfit}

    def _decide(self, ids: list[str], release: Release) -> dict[str, Decision]:
        if not ids:
            return {}
        self.stale = True  # Probes leave traces too.
        forget_traces()  # Probes must see stock functions, and no trace of patched ones.
        with stock_only(), self._patches.probing():
            return super()._decide(ids, release)

    def _judge(self, patch: Patch, targets: tuple[Target, ...], release: Release) -> Decision:
        """Decide by the probes."""
        untested = f"{self._patches.package} {release} is not a tested release"
        lacks = [name for target in targets for name in _lacks(target, release)]
        if lacks:
            names = ", ".join(dict.fromkeys(lacks))
            return _unsupported(f"{untested}; it lacks parameters that the patch needs: {names}")
        strict = self._patches.settings.strict
        guarded = tuple(_guarded(target, release, strict=strict) for target in targets)
        # First those faults that such a release had last: to look for others takes time.
        likely = sorted(patch.faults, key=lambda fault: not release.within(fault.releases))
        return _by_probe(likely, sys.modules[self._patches.package], untested, guarded)

    def _verify(self, patch_id: str, first: Decision | None) -> None:
        """Take out a patch that was chosen by probe and does not fix what the probe found.

        Then the decision is the first one, if this was the second.
        """
        patches, decision = self._patches, self.outcome.get(patch_id)
        if decision is None or not decision.probed or patch_id in patches.suspended():
            return
        with paused(), patches.probing():  # Not locked: it imports.
            verdict = _verify_fix(decision, sys.modules[patches.package])
        with LOCK:
            slot = patches.slots[patch_id]
            if verdict is not decision and slot.decision is decision:
                slot.decision = self.outcome[patch_id] = first or verdict
                patches.points.detach(patch_id)
                patches.points.refresh(patches.suspended())


def _by_probe(
    faults: Iterable[Fault], package: ModuleType, untested: str, targets: tuple[Target, ...]
) -> Decision:
    probed: list[Fault] = []
    for fault in faults:
        reproducer = fault.reproducer()
        probed += [fault] if reproducer.traces_only else []
        if reproducer.probe is None:
            continue
        try:
            shows = reproducer.probe(package) is not None
        except NotInReleaseError:
            shows = False
        except (AttributeError, ImportError) as error:  # The probe does not know this release.
            return _unsupported(f"{untested}; the probe could not run: {summarize(error)}")
        except Exception:  # Many faults show by raising.
            shows = True
        if shows:  # One fault is enough to know: tracing them all would hold up the import.
            reason = f"{untested}; the probe found: {fault.id}"
            return Decision(State.APPLIED, reason, targets, probed=tuple(probed))
    return Decision(State.NOT_NEEDED, f"{untested}; the probe found no fault")


def _verify_fix(decision: Decision, package: ModuleType) -> Decision:
    """Return the decision on an applied patch, or ``unsupported`` if its faults remain.

    A replacement may not fit a release that it was never tested on.
    """
    for fault in decision.probed:
        try:
            outcome = fault.reproduce(package)
        except Exception as error:  # Raised by the patch, or by the fault: it is not fixed.
            outcome = summarize(error)
        if outcome is not None:
            return _unsupported(f"{decision.reason}; the patch does not fix it: {outcome}")
    return decision


def _known(target: Target, release: Release) -> set[str]:
    known = target.known_parameters or {}
    return {name for name, releases in known.items() if release.within(releases)}


def _lacks(target: Target, release: Release) -> list[str]:
    known = _known(target, release)
    return sorted(known - set(parameters_of(target))) if known else []


def _guarded(target: Target, release: Release, *, strict: bool) -> Target:
    """Hand calls on to stock that give a parameter which the replacement does not know."""
    if target.known_parameters is None:
        return target
    unknown = set(parameters_of(target)) - _known(target, release)
    if not unknown:
        return target
    call: Any = target.replacement

    @functools.wraps(call)
    def replacement(stock: Stock, *args: Any, **kwargs: Any) -> Any:
        signature = inspect.signature(stock)
        given = signature.bind(*args, **kwargs).arguments  # Or the TypeError of stock.
        strange = [
            name
            for name in sorted(unknown & given.keys())
            if given[name] is not signature.parameters[name].default
        ]
        if not strange:
            return call(stock, *args, **kwargs)
        warn_or_raise(
            f"This call of {target.qualname} is not patched: the patch does not know these "
            f"arguments: {', '.join(strange)}. The stock function runs. Leave the arguments out, "
            f"or upgrade optax-dtypefix.",
            strict=strict,
        )
        return stock(*args, **kwargs)

    return target._replace(replacement=replacement)


def _unsupported(reason: str) -> Decision:
    return Decision(State.UNSUPPORTED, reason, warn=True)
