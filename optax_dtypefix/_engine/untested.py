"""Apply patches to a release that no table knows: by probes before, and checks after."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .._tally import paused
from .application import Application, forget_traces
from .lock import LOCK
from .selection import verify_fix
from .state import State
from .wrapper import stock_only

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .release import Release
    from .selection import Decision


class ProbedApplication(Application):
    """One application of some patches to an untested release."""

    def apply(self, ids: Iterable[str]) -> None:
        """Apply those patches that are neither applied nor switched off.

        Before a release, such as 0.2.8.dev0, the replacements of the coming release come second.
        """
        left: dict[str, Decision | None] = dict.fromkeys(self._list_wanted(ids))
        for release in filter(None, (self._release, self._release.as_final)):
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
