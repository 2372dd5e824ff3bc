"""Applies, reverts and records patches of one package. Knows nothing of what they do."""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Callable

from .._errors import warn_or_raise
from .._logging import LOGGER
from .._text import suggest, summarize
from . import release as _release
from .import_hook import after_import, is_imported
from .patch_points import PatchPoints
from .report import PatchStatus, Report, State
from .selection import Decision, decide, verify_fix
from .wrapper import stock_only

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from .._settings import Settings
    from .patch import Patch


class Engine:
    """The patches of one package.

    Args:
      package: name of the package that is patched.
      ids: ids of all patches, in the order in which they are stacked on a shared target.
      load: gives the patch of an id; called when the package is imported, not before.
      settings: what the user asked for from the shell.
      tested: the releases that the tables of the patches were verified on, oldest first.
    """

    def __init__(
        self,
        package: str,
        ids: Sequence[str],
        load: Callable[[str], Patch],
        settings: Settings,
        tested: Sequence[str],
    ) -> None:
        self._package = package
        self._ids = tuple(ids)
        self._load = load
        self._settings = settings
        self._tested = tuple(tested)
        self._lock = threading.RLock()
        self._sites = PatchPoints(self._ids)
        self._suspended: collections.Counter[str] = collections.Counter()
        self._requested: set[str] = set()
        self._reverted: set[str] = set()
        self._decisions: dict[str, Decision] = {}
        self._targets: dict[str, tuple[str, ...]] = {}

    def start(self) -> None:
        """Applies what is wanted as soon as the package is there, at once if it is already."""
        if not self._settings.enabled:
            return
        if is_imported(self._package):
            self.apply()
        else:
            self._await(self._package)

    def on_import(self, module: ModuleType) -> None:
        """Applies what waits for this module, amid the import of it."""
        del module  # Which one it was does not matter.
        with self._lock:
            waiting = [i for i in self._ids if self._waits(self._decision(i))]
        # Nobody outside the package can have a copy yet: it is still being imported.
        self._apply(waiting, sweep_within=self._package)

    def _waits(self, decision: Decision) -> bool:
        """In strict mode trouble stopped the import; it does so when it is tried again, too."""
        return decision.state is State.PENDING or (decision.warn and self._settings.strict)

    def apply(self, *ids: str) -> None:
        """Applies the named patches, or all that the settings want. Idempotent."""
        self._check(ids)
        with self._lock:
            self._requested.update(ids)
            self._reverted.difference_update(ids or self._ids)
        if is_imported(self._package):
            self._apply(ids or self._ids, sweep_within="")
        for patch_id in ids:
            disabled_reason = self._settings.disabled_reason(patch_id)
            if disabled_reason is not None:
                warn_or_raise(
                    f"{patch_id!r} is not applied: {disabled_reason}", strict=self._settings.strict
                )

    def revert(self, *ids: str) -> None:
        """Takes the named patches out, or all. Idempotent."""
        self._check(ids)
        with self._lock:
            self._reverted.update(ids or self._ids)
            reverted = [i for i in ids or self._ids if self._state(i) is State.APPLIED]
            for patch_id in ids or self._ids:
                self._decisions.pop(patch_id, None)
                self._targets.pop(patch_id, None)
                self._sites.detach(patch_id)
            _, foreign = self._sites.refresh(self._resting(), sweep_within="")
        if reverted:
            _forget_traces()
        if foreign:
            warn_or_raise(
                f"left in place, since another layer was put on top after the patch: "
                f"{'; '.join(foreign)}. The reverted patch below it now calls the stock function; "
                f"remove that layer first to get the stock object itself back",
                strict=self._settings.strict,
            )

    @contextlib.contextmanager
    def disabled(self, *ids: str) -> Iterator[None]:
        """Stock behaviour inside the ``with`` block, in all threads. Nests."""
        self._check(ids)
        ids = ids or self._ids
        self._suspend(ids, +1)
        try:
            yield
        finally:
            self._suspend(ids, -1)

    def is_applied(self, patch_id: str) -> bool:
        """Whether calls reach this patch right now."""
        self._check((patch_id,))
        with self._lock:
            return self._decision(patch_id).state is State.APPLIED

    def status(self) -> Report:
        """State of every patch."""
        package = sys.modules.get(self._package)
        # To load a patch is to import JAX, which nobody has asked for while the package is pending.
        declared = {i: self._declared(i) if package else ((), "", False) for i in self._ids}
        with self._lock:
            patches = tuple(
                PatchStatus(
                    patch_id,
                    decision.state,
                    decision.reason,
                    self._targets.get(patch_id, ()),
                    *declared[patch_id],
                )
                for patch_id in self._ids
                for decision in [self._decision(patch_id)]
            )
        return Report(
            optax_version=str(_release.installed(package or self._package, self._tested)),
            jax_version=_release.version_of("jax"),
            patches=patches,
            optax_location=_release.location_of(package) if package else "",
        )

    def _decision(self, patch_id: str) -> Decision:
        """What the record says of a patch, also before there was anything to decide."""
        disabled_reason = self._settings.disabled_reason(patch_id)
        if disabled_reason is not None:
            return Decision(State.DISABLED, disabled_reason)
        if patch_id in self._reverted:
            return Decision(State.DISABLED, "reverted by the program")
        decision = self._decisions.get(patch_id)
        if decision is None:
            there = sys.modules.get(self._package) is not None
            past = "was imported past our hook: see apply()" if there else "is not imported yet"
            return Decision(State.PENDING, f"{self._package} {past}")
        if decision.state is State.APPLIED and self._suspended[patch_id]:
            return Decision(State.DISABLED, "inside a disabled() block")
        lost = self._sites.lost(patch_id) if decision.state is State.APPLIED else ()
        if lost:
            reason = f"{', '.join(lost)} was loaded anew or removed since: see apply()"
            return Decision(State.FAILED, reason)
        return decision

    def _state(self, patch_id: str) -> State | None:
        decision = self._decisions.get(patch_id)
        return decision.state if decision else None

    def _await(self, module: str) -> None:
        after_import(module, self.on_import, strict=self._settings.strict)

    def _apply(self, ids: Iterable[str], *, sweep_within: str) -> None:
        ids = [patch_id for patch_id in ids if self._settings.disabled_reason(patch_id) is None]
        release = _release.installed(sys.modules[self._package], self._tested)
        with self._lock:
            before = {i for i in self._ids if self._state(i) is State.APPLIED}
        # Outside the lock: loading and probing import, while another thread may hold the lock of
        # that import and wait in our hook for ours.
        loaded = {i: self._loaded(i) for i in ids if i not in before}
        decisions = self._decide(loaded, release, busy=bool(before))
        with self._lock:
            settled = [
                patch_id
                for patch_id in loaded  # But for those that another thread has settled meanwhile.
                if patch_id not in self._reverted and self._state(patch_id) is not State.APPLIED
            ]
            for patch_id in settled:
                self._decisions[patch_id] = decisions[patch_id]
                self._attach(patch_id, decisions[patch_id])
            bound, _ = self._sites.refresh(self._resting(), sweep_within=sweep_within)
        for patch_id in settled:
            self._verify(patch_id)
        with self._lock:
            record = {i: self._decisions[i] for i in settled if i in self._decisions}
        active = any(decision.state is State.APPLIED for decision in record.values())
        if (active or bound) and not (sweep_within and release.tested):
            _forget_traces()  # The user's, or those of the probes.
        for decision in record.values():
            if decision.waits_for is not None:
                self._await(decision.waits_for)
        self._report_problems(record)  # Last: in strict mode it may raise.

    def _verify(self, patch_id: str) -> None:
        """Takes a patch out again that was chosen by probe and does not mend what was probed."""
        decision = self._decisions.get(patch_id)
        if decision is None or not decision.probed or self._suspended[patch_id]:
            return
        verdict = verify_fix(decision, sys.modules[self._package])  # Outside the lock: it imports.
        with self._lock:
            if verdict is not decision and self._decisions.get(patch_id) is decision:
                self._decisions[patch_id] = verdict
                self._targets.pop(patch_id, None)
                self._sites.detach(patch_id)
                self._sites.refresh(self._resting(), sweep_within="")

    def _report_problems(self, record: Mapping[str, Decision]) -> None:
        for patch_id, decision in record.items():
            LOGGER.info("%s: %s, %s", patch_id, decision.state, decision.reason)
        troubles = {i: decision for i, decision in record.items() if decision.warn}
        if troubles:
            words = "; ".join(f"{i} ({d.state}): {d.reason}" for i, d in troubles.items())
            warn_or_raise(
                f"stock {self._package} stays in place for {words}. See: python -m optax_dtypefix "
                f"status. OPTAX_DTYPEFIX_DISABLE={','.join(troubles)} does without, and without "
                f"this message",
                strict=self._settings.strict,
            )

    def _loaded(self, patch_id: str) -> Patch | Exception:
        try:
            return self._load(patch_id)
        except Exception as error:  # A broken patch must not break the others, or the import.
            LOGGER.debug("%s could not be loaded", patch_id, exc_info=True)
            return error

    def _decide(
        self, loaded: Mapping[str, Patch | Exception], release: _release.Release, *, busy: bool
    ) -> dict[str, Decision]:
        decisions = {}
        # Probes must see stock functions, and no trace of patched ones; the table needs no probe.
        if busy and loaded and not release.tested:
            _forget_traces()
        with stock_only():
            for patch_id, patch in loaded.items():
                if isinstance(patch, Exception):
                    decisions[patch_id] = _failure(patch)
                    continue
                requested = patch_id in self._requested
                try:
                    package = sys.modules[self._package]
                    decision = decide(patch, package, release, self._settings, requested=requested)
                except Exception as error:  # As above: only this patch is lost.
                    LOGGER.debug("%s could not be decided", patch_id, exc_info=True)
                    decision = _failure(error)
                decisions[patch_id] = decision
        return decisions

    def _attach(self, patch_id: str, decision: Decision) -> None:
        if decision.state is not State.APPLIED:
            return
        try:
            paths = [self._sites.attach(patch_id, target) for target in decision.targets]
        except Exception as error:
            LOGGER.debug("%s could not be applied", patch_id, exc_info=True)
            self._sites.detach(patch_id)
            self._decisions[patch_id] = _failure(error)
        else:
            self._targets[patch_id] = tuple(dict.fromkeys(paths))

    def _resting(self) -> set[str]:
        return {patch_id for patch_id, depth in self._suspended.items() if depth}

    def _suspend(self, ids: Iterable[str], count: int) -> None:
        with self._lock:
            before = self._resting()
            for patch_id in ids:
                self._suspended[patch_id] += count
            self._sites.stack(self._resting())
            changed = before ^ self._resting()
            active = any(self._state(patch_id) is State.APPLIED for patch_id in changed)
        if active:
            _forget_traces()

    def _declared(self, patch_id: str) -> tuple[tuple[str, ...], str, bool]:
        """What a patch says of itself, for the report, which one broken patch must not cost."""
        patch = self._loaded(patch_id)
        if isinstance(patch, Exception):
            return (), "", False
        try:
            tested = [_release.Release(text, tested=True) for text in self._tested]
            return patch.upstream, patch.fixed_in(tested), patch.opt_in
        except Exception:  # Of specifiers that cannot be read: it is recorded as failed.
            return patch.upstream, "", patch.opt_in

    def _check(self, ids: Iterable[str]) -> None:
        for patch_id in ids:
            if patch_id not in self._ids:
                raise ValueError(f"there is no patch {patch_id!r}: {suggest(patch_id, self._ids)}")


def _failure(error: Exception) -> Decision:
    return Decision(State.FAILED, summarize(error), warn=True)


def _forget_traces() -> None:
    """A function that jit has compiled would go on with what it traced: JAX must trace again."""
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "clear_caches"):
        jax.clear_caches()
