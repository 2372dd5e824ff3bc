"""Apply, revert and record the patches of one package, without knowing what they do."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from typing import TYPE_CHECKING, Any, Callable

from .._errors import warn_or_raise
from .._logging import LOGGER
from .._tally import Tally, paused
from .._text import suggest, summarize
from . import release as _release
from .import_hook import after_import, is_imported, loaded_module
from .lock import LOCK
from .patch_points import PatchPoints
from .selection import Decision, decide, verify_fix
from .state import NOT_IMPORTED, State
from .still_stock import StillStock
from .wrapper import stock_only

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from .._settings import Settings
    from .patch import Patch
    from .report import Report

REVERTED = "reverted by the program"
SUSPENDED = "inside a disabled() block"


class _Slot:
    """What the engine records of one patch."""

    def __init__(self) -> None:
        self.decision: Decision | None = None
        self.warned: Decision | None = None  # The last one that the user was warned of.
        self.requested = False  # The program named the patch in ``apply``.
        self.reverted = False
        self.tally = Tally()

    @property
    def is_applied(self) -> bool:
        return self.decision is not None and self.decision.state is State.APPLIED


class Engine:
    """The patches of one package.

    Args:
      package: name of the package that is patched.
      ids: ids of all patches, in the order in which they are stacked on a shared target.
      load: returns the patch of an id; called when the package is imported, not before.
      settings: what the user set in the environment.
      tested: the releases that the tables of the patches were verified on, oldest first.
      probing: returns a context for probes, in which the user's modes do not count.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # All that it knows of optax and of JAX.
        self,
        package: str,
        ids: Sequence[str],
        load: Callable[[str], Patch],
        settings: Settings,
        tested: Sequence[str],
        probing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._package = package
        self._ids = tuple(ids)
        self._load = load
        self._settings = settings
        self._tested = tuple(tested)
        self._probing = probing
        self._still_stock = StillStock(package)
        self._points = PatchPoints(package, self._ids)
        self._slots = {patch_id: _Slot() for patch_id in self._ids}
        self._blocks: list[tuple[str, ...]] = []  # The ids of each open ``disabled`` block.

    def on_import(self, module: ModuleType) -> None:
        """Apply the patches that wait for this module, while it is being imported."""
        with LOCK:
            waiting = [i for i in self._ids if self._is_waiting(self._decision(i))]
        self._apply(waiting, importing=module.__name__ == self._package)
        with LOCK:
            self._still_stock.skip(self._points.stock())

    def _is_waiting(self, decision: Decision) -> bool:
        # In strict mode a failed patch aborts the import, so decide again on retry. A function may
        # have been missing only because another thread was importing its module.
        waiting = decision.state in {State.PENDING, State.MISSING}
        return waiting or (decision.warn and self._settings.strict)

    def apply(self, *ids: str) -> None:
        """Apply the named patches, or all that the settings want. Idempotent."""
        self._check(ids)
        with LOCK:
            for patch_id in ids:
                self._slots[patch_id].requested = True
            for patch_id in ids or self._ids:
                self._slots[patch_id].reverted = False
        if is_imported(self._package):
            self._apply(ids or self._ids, late=True)
            self._report_still_stock()
        for patch_id in ids:
            disabled_reason = self._settings.disabled_reason(patch_id)
            if disabled_reason is not None:
                warn_or_raise(
                    f"Patch {patch_id!r} was not applied: {disabled_reason}. Change the variable "
                    f"and start the program again.",
                    strict=self._settings.strict,
                )

    def revert(self, *ids: str) -> None:
        """Take the named patches out, or all. Idempotent."""
        self._check(ids)
        with LOCK:
            for patch_id in ids or self._ids:
                slot = self._slots[patch_id]
                slot.reverted, slot.decision = True, None
                self._points.detach(patch_id)
            stale, foreign = self._points.refresh(self._suspended())
        if stale:
            _forget_traces()
        if foreign:
            warn_or_raise(
                f"Cannot fully revert: another library wrapped the patched function "
                f"({'; '.join(foreign)}). That wrapper now calls the stock function. To restore "
                f"the function itself, remove the wrapper and call optax_dtypefix.revert() again.",
                strict=self._settings.strict,
            )

    @contextlib.contextmanager
    def disabled(self, *ids: str) -> Iterator[None]:
        """Run the ``with`` block with stock behaviour, in all threads. Nests."""
        self._check(ids)
        block = ids or self._ids
        self._blocks.append(block)
        try:  # Around the entry too, which Ctrl-C may interrupt.
            self._restack()
            yield
        finally:
            self._blocks.remove(block)
            self._restack()

    def built_before(self, value: Any) -> list[str]:
        """Return the functions that built parts of a value before they were patched."""
        return self._still_stock.built_before(value)

    def is_applied(self, patch_id: str) -> bool:
        """Return whether calls reach this patch right now."""
        self._check((patch_id,))
        with LOCK:
            return self._decision(patch_id).state is State.APPLIED

    def status(self) -> Report:
        """Report the state of every patch."""
        from .report import PatchStatus, Report  # Few programs ask.

        package = loaded_module(self._package)
        # Loading a patch imports JAX, which a pending package does not justify.
        declared = {i: self._declared(i) if package else ((), "", False) for i in self._ids}
        with LOCK:
            decisions = {patch_id: self._decision(patch_id) for patch_id in self._ids}
            patches = tuple(
                PatchStatus(
                    patch_id,
                    decision.state,
                    decision.reason,
                    self._points.paths(patch_id),
                    *declared[patch_id],
                    held=tuple(self._still_stock.held(self._points.stock((patch_id,)))),
                    reached=self._slots[patch_id].tally.reached,
                    changed=self._slots[patch_id].tally.changed.copy(),
                )
                for patch_id, decision in decisions.items()
            )
        return Report(
            optax_version=str(_release.installed(package or self._package, self._tested)),
            jax_version=_release.version_of("jax"),
            patches=patches,
            optax_location=_release.location_of(package) if package else "",
        )

    def _decision(self, patch_id: str) -> Decision:
        """Return the current decision on a patch, also if it was never decided."""
        slot = self._slots[patch_id]
        disabled_reason = self._settings.disabled_reason(patch_id)
        if disabled_reason is not None:
            return Decision(State.DISABLED, disabled_reason)
        if slot.reverted:
            return Decision(State.DISABLED, REVERTED)
        if slot.decision is None:
            if loaded_module(self._package) is None:
                return Decision(State.PENDING, f"{self._package} {NOT_IMPORTED}")
            missed = f"{self._package} was imported without triggering the import hook"
            return Decision(State.PENDING, f"{missed}; call optax_dtypefix.apply()")
        if slot.is_applied and patch_id in self._suspended():
            return Decision(State.DISABLED, SUSPENDED)
        lost = self._points.lost(patch_id) if slot.is_applied else ""
        if lost:
            return Decision(State.FAILED, f"{lost}; call optax_dtypefix.apply() to patch it again")
        return slot.decision

    def _apply(self, ids: Iterable[str], *, importing: bool = False, late: bool = False) -> None:
        """Apply patches: while the package is being imported, late in the program, or between."""
        release = _release.installed(sys.modules[self._package], self._tested)
        outcome, stale = self._settle(self._decide(ids, release), importing=importing)
        self._try_as_final(outcome, release, importing=importing)
        if stale or (outcome and not release.tested):  # Probes leave traces too.
            _forget_traces()
        for decision in outcome.values():
            if decision.waits_for is not None:
                after_import(decision.waits_for, self.on_import, strict=self._settings.strict)
        active = any(decision.state is State.APPLIED for decision in outcome.values())
        if (active or importing) and LOGGER.isEnabledFor(logging.INFO):
            LOGGER.info(self.status().headline)
        # An import repeats no warning. Last: in strict mode it may raise.
        self._report_problems(outcome, again=late or self._settings.strict)

    def _try_as_final(
        self, outcome: dict[str, Decision], release: _release.Release, *, importing: bool
    ) -> None:
        """Try the replacements of the coming release where those of the one before do not fit."""
        left = [i for i, d in outcome.items() if d.state in (State.UNSUPPORTED, State.MISSING)]
        final = release.as_final if left and not release.tested else None
        if final is None:
            return
        _forget_traces()
        self._settle(self._decide(left, final), importing=importing)
        with LOCK:
            for patch_id in left:
                slot = self._slots[patch_id]
                if slot.is_applied and slot.decision:
                    outcome[patch_id] = slot.decision
                else:
                    slot.decision = outcome[patch_id]

    def _decide(self, ids: Iterable[str], release: _release.Release) -> dict[str, Decision]:
        """Decide on those patches that are neither applied nor switched off.

        Holds no lock: loading and probing trigger imports, and another thread may hold the lock of
        that import while it waits for ours.
        """
        with LOCK:
            applied = {i for i, slot in self._slots.items() if slot.is_applied}
        wanted = [i for i in ids if not (i in applied or self._settings.disabled_reason(i))]
        # Probes must see stock functions, and no trace of patched ones; the table needs no probe.
        if applied and wanted and not release.tested:
            _forget_traces()
        with stock_only(), contextlib.nullcontext() if release.tested else self._probing():
            return {patch_id: self._decide_on(patch_id, release) for patch_id in wanted}

    def _settle(
        self, decisions: Mapping[str, Decision], *, importing: bool
    ) -> tuple[dict[str, Decision], bool]:
        """Apply what was decided.

        Returns:
          The decisions as recorded, and whether JAX may have traced a function before it changed.
        """
        with LOCK:
            slots = {patch_id: self._slots[patch_id] for patch_id in decisions}
            # Another thread may have settled some of them meanwhile.
            settled = {i: s for i, s in slots.items() if not (s.reverted or s.is_applied)}
            for patch_id, slot in settled.items():
                slot.decision = self._attach(patch_id, decisions[patch_id])
            stale, _ = self._points.refresh(self._suspended(), importing=importing)
        for patch_id in settled:
            self._verify(patch_id)
        return {i: slot.decision for i, slot in settled.items() if slot.decision}, stale

    def _decide_on(self, patch_id: str, release: _release.Release) -> Decision:
        named = self._slots[patch_id].requested or self._settings.opted_in(patch_id)
        package, strict = sys.modules[self._package], self._settings.strict
        try:
            patch, failed = self._load(patch_id), functools.partial(self._not_loaded, patch_id)
            targets = tuple(target.loaded_when_called(failed) for target in patch.targets)
            patch = patch._replace(targets=targets)
            return decide(patch, package, release, opted_in=named, strict=strict)
        except Exception as error:  # A broken patch must not break the others, or the import.
            LOGGER.debug("%s could not be decided", patch_id, exc_info=True)
            return _failure(error)

    def _attach(self, patch_id: str, decision: Decision) -> Decision:
        """Add the layers of a patch. Return the decision to record."""
        if decision.state is not State.APPLIED:
            return decision
        tally = self._slots[patch_id].tally
        try:
            for target in decision.targets:
                call = target.replacement
                if target.name != "__getattr__":  # Reading a name from a module is no call.
                    call = tally.layer(call)
                self._points.attach(patch_id, target._replace(replacement=call))
        except Exception as error:
            self._points.detach(patch_id)
            return _failure(error)
        return decision

    def _not_loaded(self, patch_id: str, error: Exception) -> None:
        """Take out a patch whose file could not be imported when a function was called.

        In strict mode the layers stay, and each call raises.
        """
        failure, slot, strict = _failure(error), self._slots[patch_id], self._settings.strict
        with LOCK:
            if slot.decision == failure and not strict:  # Another thread was first.
                return
            slot.decision = failure
            if not strict:
                self._points.detach(patch_id)
                self._points.refresh(self._suspended())
        self._report_problems({patch_id: failure}, again=strict)

    def _verify(self, patch_id: str) -> None:
        """Take out a patch that was chosen by probe and does not fix what the probe found."""
        slot = self._slots[patch_id]
        with LOCK:
            decision = slot.decision
            if decision is None or not decision.probed or patch_id in self._suspended():
                return
        with paused(), self._probing():  # Not locked: it imports.
            verdict = verify_fix(decision, sys.modules[self._package])
        with LOCK:
            if verdict is not decision and slot.decision is decision:
                slot.decision = verdict
                self._points.detach(patch_id)
                self._points.refresh(self._suspended())

    def _report_problems(self, outcome: Mapping[str, Decision], *, again: bool) -> None:
        problems = {}
        for patch_id, decision in outcome.items():
            LOGGER.debug("%s: %s, %s", patch_id, decision.state, decision.reason)
            slot = self._slots[patch_id]
            if decision.warn and (again or decision != slot.warned):
                problems[patch_id] = slot.warned = decision
        if problems:
            details = "; ".join(f"{i} ({d.state}): {d.reason}" for i, d in problems.items())
            warn_or_raise(
                f"Could not apply {details}. The functions of these patches stay stock. For "
                f"details, run `python -m optax_dtypefix status -v`. To silence this message, set "
                f"OPTAX_DTYPEFIX_DISABLE={','.join(problems)}.",
                strict=self._settings.strict,
            )

    def _report_still_stock(self) -> None:
        try:
            with LOCK:
                names = self._still_stock.search(
                    self._points.stock(), self._points.holders(), again=self._settings.strict
                )
        except Exception:  # The patches are applied: only the warning is lost.
            LOGGER.debug("could not search for what is still stock", exc_info=True)
            return
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            warn_or_raise(
                f"Built before the patches were applied, and still stock: {', '.join(names[:6])}"
                f"{more}. Build these objects again, or import optax_dtypefix earlier.",
                strict=self._settings.strict,
            )

    def _suspended(self) -> set[str]:
        return {patch_id for block in tuple(self._blocks) for patch_id in block}

    def _restack(self) -> None:
        """Let the layers act that no ``disabled`` block suspends now."""
        with LOCK:
            stale = self._points.stack(self._suspended())
        if stale:
            _forget_traces()

    def _declared(self, patch_id: str) -> tuple[tuple[str, ...], str, bool]:
        """Return a patch's links, the release that fixes it, and whether it is opt-in."""
        try:
            patch = self._load(patch_id)
            tested = [_release.Release(text, tested=True) for text in self._tested]
            return patch.upstream, patch.fixed_in(tested), patch.opt_in
        except Exception:  # Its state says why it failed.
            return (), "", False

    def _check(self, ids: Iterable[str]) -> None:
        for patch_id in ids:
            if patch_id not in self._ids:
                raise ValueError(f"Unknown patch {patch_id!r}. {suggest(patch_id, self._ids)}")


def _failure(error: Exception) -> Decision:
    return Decision(State.FAILED, summarize(error), warn=True)


def _forget_traces() -> None:
    """Drop JAX's traces: a compiled function would keep the functions that it was traced with."""
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "clear_caches"):
        try:
            jax.clear_caches()
        except KeyboardInterrupt:  # Half of the caches are stale.
            jax.clear_caches()
            raise
