"""Apply and revert the patches of one package, without knowing what they do.

The verbs stand here. What few programs need is imported by the verb that needs it, while no
thread can fork: in the child the import would never end.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from .._errors import warn_or_raise
from .._logging import LOGGER
from . import release as _release
from .application import Patches, by_table
from .import_hook import after_import, is_being_imported, is_imported, loaded_module
from .lock import LOADING, LOCK
from .state import REVERTED, UNDECIDED, State

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from types import ModuleType

    from .._diagnosis.report import Report
    from .stock_block import StockBlock


class Engine(Patches):
    """The patches of one package, and what a program can do with them."""

    _copy: ModuleType | None = None  # The package that was decided on.

    def on_import(self, module: ModuleType) -> None:
        """Apply the patches that wait for this module, at the end of its import or later."""
        if loaded_module(self.package) is not None:  # Else its import failed, and another one came.
            if is_being_imported(module):  # Nothing can have been built yet.
                self.built_before = self.built_before or ()
            self._apply(self.ids)

    def apply(self, *ids: str) -> None:
        """Apply the named patches, or all that the settings want. Idempotent."""
        chosen = self.choose(ids)
        with LOCK:
            for patch_id in chosen:
                slot = self.slots[patch_id]
                slot.requested |= bool(ids)
                if not slot.is_applied:  # Decide and warn again.
                    slot.decision = UNDECIDED
        if is_imported(self.package):
            self._apply(chosen)
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
        with self.change() as foreign:
            for patch_id in chosen:
                self.slots[patch_id].decision = REVERTED
        if foreign:
            warn_or_raise(
                f"Cannot fully revert: another library wrapped the patched function "
                f"({'; '.join(foreign)}). That wrapper now calls the stock function. To restore "
                f"the function itself, remove the wrapper and call optax_dtypefix.revert() again.",
                strict=self.settings.strict,
            )

    def disabled(self, *ids: str) -> StockBlock:
        """Run the ``with`` block with stock behaviour, in all threads. Nests."""
        with LOADING:
            from .stock_block import StockBlock

        return StockBlock(self._without, ids, {})

    def _without(self, *ids: str) -> Generator[None, None, None]:
        block = self.choose(ids)
        self.blocks.append(block)
        try:  # Around the entry too, which Ctrl-C may interrupt.
            with self.change():
                pass
            yield
        finally:
            with self.change():
                self.blocks.remove(block)

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

    def _apply(self, ids: Iterable[str]) -> None:
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
        strict = self.settings.strict
        with LOCK:
            layers = [layer for s in self.slots.values() for layer in s.decision.layers.values()]
        if not layers or not (self.built_before is None or (strict and self.built_before)):
            return
        with LOADING:
            from .built_before import builder_of, find_built

        if self.built_before is None:
            targets = [layer.target for layer in layers]
            builders = {i for t in targets for i in (t.qualname.partition(".")[0], *t.builds)}
            self.built_before = find_built(self.package, builders)
        names = sorted({*map(builder_of, self.built_before)})
        if names:
            warn_or_raise(
                f"Built before the patches were applied, and still stock: {', '.join(names)}. "
                f"Build these optimizers again, or import optax_dtypefix first.",
                strict=strict,
            )
