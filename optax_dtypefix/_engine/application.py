"""Apply patches to the installed release: decide on each, add its layers, and record what came."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Callable

from .._errors import summarize, warn_or_raise
from .._logging import LOGGER
from .._tally import Tally
from .import_hook import loaded_module
from .lock import LOCK
from .patch_points import PatchPoints
from .selection import Decision, decide
from .state import NOT_IMPORTED, State
from .when_called import WhenCalled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .._settings import Settings
    from .patch import Patch, Replacement, Target
    from .release import Release


class Slot:
    """What is known of one patch."""

    def __init__(self) -> None:
        self.decision: Decision | None = None
        self.warned: Decision | None = None  # The last one that the user was warned of.
        self.requested = False  # The program named the patch in ``apply``.
        self.reverted = False
        self.tally = Tally()

    @property
    def is_applied(self) -> bool:
        """Whether the patch is applied, perhaps inside a ``disabled`` block."""
        return self.decision is not None and self.decision.state is State.APPLIED


class Patches:
    """The patches of one package. Hold ``LOCK`` while you read or change what is known of them.

    Args:
      package: name of the package that is patched.
      ids: ids of all patches, in the order in which they are stacked on a shared target.
      load: returns the patch of an id; called when the package is imported, not before.
      settings: what the user set in the environment.
      tested: the releases that the tables of the patches were verified on, oldest first.
      probing: returns a context for probes, in which the user's modes do not count.
      removed: ids of older versions, which do nothing, and what to say if one is named.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # All that the engine knows of optax and of JAX.
        self,
        package: str,
        ids: Sequence[str],
        load: Callable[[str], Patch],
        settings: Settings,
        tested: Sequence[str],
        probing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        removed: Mapping[str, str] = {},
    ) -> None:
        self.package = package
        self.ids = tuple(ids)
        self.load = load
        self.settings = settings
        self.tested = tuple(tested)
        self.probing = probing
        self.removed = removed
        self.points = PatchPoints(package, self.ids)
        self.slots = {patch_id: Slot() for patch_id in self.ids}
        self.blocks: list[tuple[str, ...]] = []  # The ids of each open ``disabled`` block.

    def choose(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return the named ids without those that are removed, or all if none is named.

        Raises:
          ValueError: unknown id; the message names the nearest one.
        """
        for patch_id in ids:
            if patch_id in (*self.removed,):  # A list has no hash.
                warn_or_raise(f"Patch {patch_id!r} {self.removed[patch_id]}", strict=False)
            elif patch_id not in self.ids:
                from .._text import suggest  # Only an error needs it.

                raise ValueError(f"Unknown patch {patch_id!r}. {suggest(patch_id, self.ids)}")
        return tuple(i for i in ids if i in self.ids) if ids else self.ids

    def suspended(self) -> set[str]:
        """Return the patches of the open ``disabled`` blocks."""
        return {patch_id for block in tuple(self.blocks) for patch_id in block}

    def decision_now(self, patch_id: str) -> Decision:
        """Return the current decision on a patch, also if it was never decided."""
        slot = self.slots[patch_id]
        disabled_reason = self.settings.disabled_reason(patch_id)
        if disabled_reason is not None:
            return Decision(State.DISABLED, disabled_reason)
        if slot.reverted:
            return Decision(State.DISABLED, "reverted by the program")
        if slot.decision is None:
            if loaded_module(self.package) is None:
                return Decision(State.PENDING, f"{self.package} {NOT_IMPORTED}")
            missed = f"{self.package} was imported without triggering the import hook"
            return Decision(State.PENDING, f"{missed}; call optax_dtypefix.apply()")
        if slot.is_applied and patch_id in self.suspended():
            return Decision(State.DISABLED, "inside a disabled() block")
        lost = self.points.lost(patch_id) if slot.is_applied else ""
        if lost:
            return Decision(State.FAILED, f"{lost}; call optax_dtypefix.apply() to patch it again")
        return slot.decision

    def is_waiting(self, patch_id: str) -> bool:
        """Return whether an import may change the decision on a patch."""
        slot = self.slots[patch_id]
        decision = slot.decision
        if decision is None or slot.reverted:
            return not slot.reverted
        # In strict mode a failed patch aborts the import, so decide again on retry. A function may
        # have been missing only because another thread was importing its module.
        waiting = decision.state in (State.PENDING, State.MISSING)
        return waiting or (decision.warn and self.settings.strict)

    def take_out(self, patch_id: str, error: Exception) -> None:
        """Take out a patch whose file could not be imported when a function was called.

        In strict mode the layers stay, and each call raises.
        """
        failure, slot, strict = describe_failure(error), self.slots[patch_id], self.settings.strict
        with LOCK:
            if slot.decision == failure and not strict:  # Another thread was first.
                return
            slot.decision = failure
            if not strict:
                self.points.detach(patch_id)
                self.points.refresh(self.suspended())
        self.report_problems({patch_id: failure})

    def report_problems(self, outcome: Mapping[str, Decision]) -> None:
        """Warn of what was wanted and not done, once. In strict mode, raise each time."""
        problems = {}
        for patch_id, decision in outcome.items():
            LOGGER.debug("%s: %s, %s", patch_id, decision.state, decision.reason)
            slot = self.slots[patch_id]
            if decision.warn and (self.settings.strict or decision != slot.warned):
                problems[patch_id] = slot.warned = decision
        if problems:
            details = "; ".join(f"{i} ({d.state}): {d.reason}" for i, d in problems.items())
            warn_or_raise(
                f"Could not apply {details}. The functions of these patches stay stock. For "
                f"details, run `python -m optax_dtypefix status -v`. To silence this message, set "
                f"OPTAX_DTYPEFIX_DISABLE={','.join(problems)}.",
                strict=self.settings.strict,
            )


class Application:
    """One application of some patches, by the tables of a tested release.

    Args:
      patches: the patches of the package.
      release: the installed release.
      importing: the package that is being imported, so that no other code has a copy of its
        functions yet; empty if none is.

    Attributes:
      outcome: the decisions, as recorded.
      stale: whether JAX may have traced a function before it changed.
    """

    def __init__(self, patches: Patches, release: Release, *, importing: str) -> None:
        self._patches = patches
        self._release = release
        self._importing = importing
        self.outcome: dict[str, Decision] = {}
        self.stale = False

    def apply(self, ids: Iterable[str]) -> None:
        """Apply those patches that are neither applied nor switched off."""
        self._record(self._decide(self._list_wanted(ids)))

    def _list_wanted(self, ids: Iterable[str]) -> list[str]:
        slots, disabled_reason = self._patches.slots, self._patches.settings.disabled_reason
        with LOCK:
            return [i for i in ids if not (slots[i].is_applied or disabled_reason(i))]

    def _decide(self, ids: Iterable[str]) -> dict[str, Decision]:
        """Decide on patches.

        Holds no lock: loading and probing trigger imports, and another thread may hold the lock of
        that import while it waits for ours.
        """
        return {patch_id: self._decide_on(patch_id) for patch_id in ids}

    def _decide_on(self, patch_id: str) -> Decision:
        patches = self._patches
        named = patches.slots[patch_id].requested or patches.settings.opted_in(patch_id)
        try:
            patch = patches.load(patch_id)
            package = patches.package
            return decide(patch, self._release, package, opted_in=named, judge=self._judge)
        except Exception as error:  # A broken patch must not break the others, or the import.
            LOGGER.debug("%s could not be decided", patch_id, exc_info=True)
            return describe_failure(error)

    def _judge(self, patch: Patch, targets: tuple[Target, ...]) -> Decision:
        """Decide by the table of the faults."""
        faults = patch.faults_on(self._release)
        installed = f"{self._patches.package} {self._release}"
        if not faults:
            return Decision(State.NOT_NEEDED, f"{installed} has none of the faults of this patch")
        names = ", ".join(fault.id for fault in faults)
        return Decision(State.APPLIED, f"{installed} has: {names}", targets)

    def _record(self, decisions: Mapping[str, Decision]) -> None:
        """Apply what was decided, and record it, in one step for other threads."""
        slots, points = self._patches.slots, self._patches.points
        with LOCK:
            for patch_id, decision in decisions.items():
                slot = slots[patch_id]
                if not (slot.reverted or slot.is_applied):  # Another thread may have settled it.
                    slot.decision = self.outcome[patch_id] = self._attach(patch_id, decision)
            stale, _ = points.refresh(self._patches.suspended(), importing=self._importing)
        self.stale = self.stale or stale

    def _attach(self, patch_id: str, decision: Decision) -> Decision:
        """Add the layers of a patch. Return the decision to record."""
        points = self._patches.points
        try:
            for target in decision.targets:
                points.attach(patch_id, target, self._make_layer(patch_id, target))
        except Exception as error:
            points.detach(patch_id)
            return describe_failure(error)
        return decision

    def _make_layer(self, patch_id: str, target: Target) -> Replacement:
        """Return what is called in place of the stock function."""
        tally = self._patches.slots[patch_id].tally
        failed = functools.partial(self._patches.take_out, patch_id)
        if target.name == "__new__":  # It builds each object, and counts those that it changes.
            return WhenCalled(target.replacement, failed, None, tally, failed)
        is_call = target.name != "__getattr__"  # To read a name from a module is none.
        return WhenCalled(target.replacement, failed, tally if is_call else None)


def describe_failure(error: Exception) -> Decision:
    """Return the decision on a patch that raised an error."""
    return Decision(State.FAILED, summarize(error), warn=True)


def forget_traces() -> None:
    """Drop JAX's traces: a compiled function would keep the functions that it was traced with."""
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "clear_caches"):
        try:
            jax.clear_caches()
        except KeyboardInterrupt:  # Half of the caches are stale.
            jax.clear_caches()
            raise
