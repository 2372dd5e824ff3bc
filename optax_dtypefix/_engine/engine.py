"""Apply and revert the patches of one package, without knowing what they do.

The verbs stand here. What few programs need is imported by the verb that needs it, while no
thread can fork: in the child the import would never end.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING

from .._errors import warn_or_raise
from .._logging import LOGGER
from . import release as _release
from .application import Application, Patches, forget_traces
from .import_hook import after_import, is_being_imported, is_imported, loaded_module
from .lock import LOADING, LOCK
from .state import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from .._diagnosis.report import Report


class Engine(Patches):
    """The patches of one package, and what a program can do with them."""

    def on_import(self, module: ModuleType) -> None:
        """Apply the patches that wait for this module, at the end of its import or later."""
        if loaded_module(self.package) is None:  # Its import failed, and another package came.
            return
        late = not is_being_imported(module)
        package, _, part = module.__name__.partition(".")
        with LOCK:
            waiting = [patch_id for patch_id in self.ids if self.is_waiting(patch_id)]
        self._apply(waiting, importing="" if late or part else package)
        if late:
            self._report_still_stock()
            return
        with LOCK:
            self.points.mark_in_time(package)

    def apply(self, *ids: str) -> None:
        """Apply the named patches, or all that the settings want. Idempotent."""
        chosen = self.choose(ids)
        with LOCK:
            for patch_id in chosen:
                slot = self.slots[patch_id]
                slot.requested |= bool(ids)
                slot.reverted, slot.warned = False, None
        if is_imported(self.package):
            self._apply(chosen)
            self._report_still_stock()
        for patch_id in chosen if ids else ():
            disabled_reason = self.settings.disabled_reason(patch_id)
            if disabled_reason is not None:
                warn_or_raise(
                    f"Patch {patch_id!r} was not applied: {disabled_reason}. Change the variable "
                    f"and start the program again.",
                    strict=self.settings.strict,
                )

    def revert(self, *ids: str) -> None:
        """Take the named patches out, or all. Idempotent."""
        chosen = self.choose(ids)
        with LOCK:
            for patch_id in chosen:
                slot = self.slots[patch_id]
                slot.reverted, slot.decision = True, None
                self.points.detach(patch_id)
            stale, foreign = self.points.refresh(self.suspended())
        if stale:
            forget_traces()
        if foreign:
            warn_or_raise(
                f"Cannot fully revert: another library wrapped the patched function "
                f"({'; '.join(foreign)}). That wrapper now calls the stock function. To restore "
                f"the function itself, remove the wrapper and call optax_dtypefix.revert() again.",
                strict=self.settings.strict,
            )

    @contextlib.contextmanager
    def disabled(self, *ids: str) -> Iterator[None]:
        """Run the ``with`` block with stock behaviour, in all threads. Nests."""
        block = self.choose(ids)
        self.blocks.append(block)
        try:  # Around the entry too, which Ctrl-C may interrupt.
            self._restack()
            yield
        finally:
            self.blocks.remove(block)
            self._restack()

    def _restack(self) -> None:
        with LOCK:
            stale = self.points.stack(self.suspended())
        if stale:
            forget_traces()

    def is_applied(self, patch_id: str) -> bool:
        """Return whether calls reach this patch right now."""
        chosen = self.choose((patch_id,))
        with LOCK:
            return any(self.decision_now(i).state is State.APPLIED for i in chosen)

    def status(self) -> Report:
        """Report the state of every patch."""
        with LOADING:
            from .._diagnosis.report import make_report

        return make_report(self)

    def _apply(self, ids: Iterable[str], *, importing: str = "") -> None:
        release = _release.installed(sys.modules[self.package], self.tested)
        application = Application(self, release, importing=importing)
        if not release.tested:
            with LOADING:
                from .untested import ProbedApplication

            application = ProbedApplication(self, release, importing=importing)
        application.apply(ids)
        if application.stale:
            forget_traces()
        outcome = application.outcome
        for decision in outcome.values():
            if decision.waits_for is not None:
                after_import(decision.waits_for, self.on_import, strict=self.settings.strict)
        active = any(decision.state is State.APPLIED for decision in outcome.values())
        if (active or importing == self.package) and LOGGER.isEnabledFor(logging.INFO):
            LOGGER.info(self.status().headline)
        self.report_problems(outcome)  # Last: in strict mode it may raise.

    def _report_still_stock(self) -> None:
        with LOADING:
            from .still_stock import find_still_stock

        strict = self.settings.strict
        try:
            with LOCK:
                names = find_still_stock(self.points, again=strict)
        except Exception:  # The patches are applied: only the warning is lost.
            LOGGER.debug("could not search for what is still stock", exc_info=True)
            return
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            warn_or_raise(
                f"Built before the patches were applied, and still stock: {', '.join(names[:6])}"
                f"{more}. Build these objects again, or import optax_dtypefix earlier.",
                strict=strict,
            )
