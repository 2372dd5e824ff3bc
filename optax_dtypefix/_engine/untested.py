"""Apply patches to a release that no table knows: by probes before, and checks after."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING

from .._diagnosis.probes import decide_by_probes, unsupported, verify_fix
from .._tally import paused
from .application import Application, forget_traces
from .locate import defining_module, find
from .lock import LOCK
from .state import State
from .wrapper import stock_only

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .patch import Patch, Target
    from .state import Decision


class ProbedApplication(Application):
    """One application of some patches to an untested release."""

    def apply(self, ids: Iterable[str]) -> None:
        """Apply those patches that are neither applied nor switched off.

        The replacements of a later release come second.
        """
        left: dict[str, Decision | None] = dict.fromkeys(self._list_wanted(ids))
        for release in (self._release, self._release.as_later):
            self._release = release
            decisions = self._decide(left) if left else {}
            # A second decision counts if it is better than the first.
            self._record({i: d for i, d in decisions.items() if left[i] is None or d.targets})
            for patch_id, first in left.items():
                self._verify(patch_id, first)
            unfit = (State.UNSUPPORTED, State.MISSING)
            left = {i: decision for i, decision in self.outcome.items() if decision.state in unfit}

    def _decide(self, ids: Iterable[str]) -> dict[str, Decision]:
        self.stale = True  # Probes leave traces too.
        forget_traces()  # Probes must see stock functions, and no trace of patched ones.
        with stock_only(), self._patches.probing():
            return super()._decide(ids)

    def _judge(self, patch: Patch, targets: tuple[Target, ...]) -> Decision:
        """Decide by the probes."""
        release = self._release
        untested = f"{self._patches.package} {release} is not a tested release"
        for target in targets:
            parameters = (target.known_parameters or {}).items()
            known = {name for name, releases in parameters if release.within(releases)}
            stock = find(defining_module(target) or "", target.qualname)
            other = known and known ^ inspect.signature(stock).parameters.keys()
            if other:
                names = ", ".join(sorted(other))
                return unsupported(f"{untested}; {target.qualname} has other parameters: {names}")
        # First those faults that such a release had last: to look for others takes time.
        likely = sorted(patch.faults, key=lambda fault: not release.within(fault.releases))
        decision = decide_by_probes(likely, sys.modules[self._patches.package], untested)
        return decision._replace(targets=targets) if decision.state is State.APPLIED else decision

    def _verify(self, patch_id: str, first: Decision | None) -> None:
        """Take out a patch that was chosen by probe and does not fix what the probe found.

        Then the decision is the first one, if this was the second.
        """
        patches, decision = self._patches, self.outcome.get(patch_id)
        if decision is None or not decision.probed or patch_id in patches.suspended():
            return
        with paused(), patches.probing():  # Not locked: it imports.
            verdict = verify_fix(decision, sys.modules[patches.package])
        with LOCK:
            slot = patches.slots[patch_id]
            if verdict is not decision and slot.decision is decision:
                slot.decision = self.outcome[patch_id] = first or verdict
                patches.points.detach(patch_id)
                patches.points.refresh(patches.suspended())
