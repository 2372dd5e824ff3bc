"""Applies, reverts and records patches of one package. Knows nothing of what they do."""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Callable

import wrapt

from optax_dtypefix import _release
from optax_dtypefix._environment import nearest
from optax_dtypefix._errors import LOGGER, complain
from optax_dtypefix._report import PatchStatus, Report, State
from optax_dtypefix._selection import Decision, decide
from optax_dtypefix._sites import Sites

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

    from optax_dtypefix._environment import Settings
    from optax_dtypefix._patch import Patch


class Engine:
    """The patches of one package.

    Args:
      package: name of the package that is patched.
      ids: ids of all patches, in the order in which they are stacked on a shared target.
      load: gives the patch of an id; called when the package is imported, not before.
      settings: what the user asked for from the shell.
    """

    def __init__(
        self, package: str, ids: Sequence[str], load: Callable[[str], Patch], settings: Settings
    ) -> None:
        self._package = package
        self._ids = tuple(ids)
        self._load = load
        self._settings = settings
        self._lock = threading.RLock()
        self._sites = Sites(package, self._ids)
        self._suspended: collections.Counter[str] = collections.Counter()
        self._requested: set[str] = set()
        self._reverted: set[str] = set()
        self._awaited: set[str] = set()
        self._decisions: dict[str, Decision] = {}
        self._targets: dict[str, tuple[str, ...]] = {}

    def start(self) -> None:
        """Applies what is wanted as soon as the package is there, at once if it is already."""
        if not self._settings.enabled:
            return
        if self._package in sys.modules:
            self.apply()
        else:
            self._await(self._package)

    def apply(self, *ids: str) -> None:
        """Applies the named patches, or all that the settings want. Idempotent."""
        self._check(ids)
        with self._lock:
            self._requested.update(ids)
            self._reverted.difference_update(ids or self._ids)
        for patch_id in ids:
            refusal = self._settings.refusal(patch_id)
            if refusal is not None:
                complain(f"{patch_id!r} is not applied: {refusal}", strict=self._settings.strict)
        if self._package in sys.modules:
            self._apply(ids or self._ids, sweep_within="")

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
            foreign = self._sites.refresh(self._resting(), sweep_within="")
        if reverted:
            _forget_traces()
        if foreign:
            complain(
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
            return self._state(patch_id) is State.APPLIED and not self._suspended[patch_id]

    def status(self) -> Report:
        """State of every patch."""
        package = sys.modules.get(self._package)
        upstream = {patch_id: self._upstream(patch_id) for patch_id in self._ids}
        with self._lock:
            patches = tuple(
                PatchStatus(
                    patch_id,
                    decision.state,
                    decision.reason,
                    self._targets.get(patch_id, ()),
                    upstream[patch_id],
                )
                for patch_id in self._ids
                for decision in [self._decision(patch_id)]
            )
        return Report(
            optax_version=str(_release.installed(package or self._package)),
            jax_version=_release.version_of("jax"),
            patches=patches,
            optax_location=_release.location_of(package) if package else "",
        )

    def _decision(self, patch_id: str) -> Decision:
        """What the record says of a patch, also before there was anything to decide."""
        refusal = self._settings.refusal(patch_id)
        if refusal is not None:
            return Decision(State.DISABLED, refusal)
        if patch_id in self._reverted:
            return Decision(State.DISABLED, "reverted by the program")
        decision = self._decisions.get(patch_id)
        if decision is None:
            return Decision(State.PENDING, f"{self._package} is not imported yet")
        if decision.state is State.APPLIED and self._suspended[patch_id]:
            return Decision(State.DISABLED, "inside a disabled() block")
        return decision

    def _state(self, patch_id: str) -> State | None:
        decision = self._decisions.get(patch_id)
        return decision.state if decision else None

    def _await(self, module: str) -> None:
        if module not in self._awaited:
            self._awaited.add(module)
            wrapt.register_post_import_hook(self._on_import, module)

    def _on_import(self, module: ModuleType) -> None:
        # Nobody outside the package can have a copy yet: it is still being imported.
        del module
        self._apply([i for i in self._ids if i not in self._reverted], sweep_within=self._package)

    def _apply(self, ids: Iterable[str], *, sweep_within: str) -> None:
        # Outside the lock: it imports, and another thread may hold an import lock and wait for us.
        ids = [patch_id for patch_id in ids if self._settings.refusal(patch_id) is None]
        loaded = [(patch_id, self._loaded(patch_id)) for patch_id in ids]
        with self._lock:
            release = _release.installed(sys.modules[self._package])
            before = {i for i in self._ids if self._state(i) is State.APPLIED}
            wanted = [(i, patch) for i, patch in loaded if i not in before]
            self._decisions.update(self._decide(wanted, release))
            for patch_id, patch in wanted:
                self._attach(patch_id, patch)
            self._sites.refresh(self._resting(), sweep_within=sweep_within)
            applied = {i for i in self._ids if self._state(i) is State.APPLIED} - before
            troubles = [
                f"{patch_id} ({decision.state}): {decision.reason}"
                for patch_id, _ in wanted
                for decision in [self._decisions[patch_id]]
                if decision.trouble
            ]
        for patch_id, _ in wanted:
            decision = self._decisions[patch_id]
            LOGGER.info("%s: %s, %s", patch_id, decision.state, decision.reason)
        if applied and not sweep_within:
            _forget_traces()
        if troubles:
            complain(
                f"stock {self._package} stays in place for {'; '.join(troubles)}. "
                f"See: python -m optax_dtypefix status",
                strict=self._settings.strict,
            )

    def _loaded(self, patch_id: str) -> Patch | Exception:
        try:
            return self._load(patch_id)
        except Exception as error:  # A broken patch must not break the others, or the import.
            LOGGER.debug("%s could not be loaded", patch_id, exc_info=True)
            return error

    def _decide(
        self, wanted: list[tuple[str, Patch | Exception]], release: _release.Release
    ) -> dict[str, Decision]:
        decisions = {}
        # Probes must see stock functions; the table needs no probe.
        with contextlib.nullcontext() if release.tested else self.disabled():
            for patch_id, patch in wanted:
                if isinstance(patch, Exception):
                    decisions[patch_id] = _failure(patch)
                    continue
                requested = patch_id in self._requested
                try:
                    decision = decide(patch, release, self._settings, requested=requested)
                except Exception as error:  # As above: only this patch is lost.
                    LOGGER.debug("%s could not be decided", patch_id, exc_info=True)
                    decision = _failure(error)
                decisions[patch_id] = decision
        return decisions

    def _attach(self, patch_id: str, patch: Patch | Exception) -> None:
        decision = self._decisions[patch_id]
        if decision.awaits is not None:
            self._await(decision.awaits)
        if decision.state is not State.APPLIED or isinstance(patch, Exception):
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
            for patch_id in ids:
                self._suspended[patch_id] += count
            self._sites.refresh(self._resting(), sweep_within=self._package)
            acting = any(self._state(patch_id) is State.APPLIED for patch_id in ids)
        if acting:
            _forget_traces()

    def _upstream(self, patch_id: str) -> tuple[str, ...]:
        patch = self._loaded(patch_id)
        return () if isinstance(patch, Exception) else patch.upstream

    def _check(self, ids: Iterable[str]) -> None:
        for patch_id in ids:
            if patch_id not in self._ids:
                raise ValueError(f"there is no patch {patch_id!r}: {nearest(patch_id, self._ids)}")


def _failure(error: Exception) -> Decision:
    return Decision(State.FAILED, f"{type(error).__name__}: {error}", trouble=True)


def _forget_traces() -> None:
    """A function that jit has compiled would go on with what it traced: JAX must trace again."""
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "clear_caches"):
        jax.clear_caches()
