"""Apply the patches of one package when it is imported, without knowing what they do.

What few programs need is imported where it is needed, while no thread can fork: in the child the
import would never end.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from .._logging import LOGGER
from . import release as _release
from .application import Patches, by_table
from .import_hook import after_import, is_being_imported, loaded_module
from .lock import LOADING, LOCK
from .state import REVERTED, UNDECIDED, State

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from .._diagnosis.report import Report


class Engine(Patches):
    """The patches of one package, and when they are applied. ``verbs`` has what programs ask."""

    _copy: ModuleType | None = None  # The package that was decided on.

    def on_import(self, module: ModuleType) -> None:
        """Apply the patches that wait for this module, at the end of its import or later."""
        if loaded_module(self.package) is not None:  # Else its import failed, and another one came.
            if is_being_imported(module):  # Nothing can have been built yet.
                self.built_before = self.built_before or ()
            self.apply_waiting(self.ids)

    def status(self) -> Report:
        """Report the state of every patch."""
        with LOADING:
            from .._diagnosis.report import make_report

        return make_report(self)

    def apply_waiting(self, ids: Iterable[str]) -> None:
        """Apply those of some patches that wait for this."""
        module, off = sys.modules[self.package], self.settings.disabled_reason
        with LOCK:
            self._notice_copy(module)
            waiting = [i for i in ids if self.slots[i].is_waiting and not off(i)]
        release = _release.installed(module, self.tested)
        if release.tested:
            news = self.record(self.decide(waiting, release, by_table))
        else:
            with LOADING:
                from .untested import apply_by_probes

            news = apply_by_probes(self, waiting, release)
        for decision in news.values():
            for name in decision.waits_for:
                after_import(name, self.on_import, strict=self.settings.strict)
        active = any(decision.state is State.APPLIED for decision in news.values())
        if (active or is_being_imported(module)) and LOGGER.isEnabledFor(logging.INFO):
            LOGGER.info(self.status().headline)
        self.report_problems(news)  # Late: in strict mode it may raise.
        self._report_built_before()

    def _notice_copy(self, module: ModuleType) -> None:
        """Decide again if the program dropped the package and imported it once more."""
        if getattr(module, "__spec__", None) is None:  # A stub.
            return
        for slot in self.slots.values() if self._copy not in (None, module) else ():
            if slot.decision is not REVERTED:
                slot.decision = UNDECIDED
        self._copy = module

    def _report_built_before(self) -> None:
        """Warn of optimizers that stay stock, at the first call. In strict mode, raise each time.

        What a program builds after ``revert`` is stock on purpose.
        """
        with LOCK:
            layers = [layer for s in self.slots.values() for layer in s.decision.layers.values()]
        again = self.settings.strict and self.built_before
        if layers and (self.built_before is None or again):
            with LOADING:
                from .built_before import report_built

            report_built(self, [layer.target for layer in layers])
