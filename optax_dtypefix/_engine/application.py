"""Hold what is known of each patch, and make the functions of the package follow."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any, Callable

from .._errors import summarize, warn_or_raise
from .._logging import LOGGER
from .._tally import Tally
from .locate import defining_module, place_of, unloaded_module
from .lock import LOCK
from .patch_points import PatchPoints
from .state import NOT_IMPORTED, NOT_OPTED_IN, REVERTED, UNDECIDED, Decision, State
from .when_called import WhenCalled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from .._settings import Settings
    from .locate import Place
    from .patch import Patch, Target
    from .release import Release

    Judge = Callable[[str, Release, Patch, Sequence[Target]], Decision]


class Slot:
    """What is known of one patch.

    Attributes:
      decision: the last decision on it.
      requested: whether the program named the patch in ``apply``.
      tally: counts the calls that reach it.
    """

    def __init__(self) -> None:
        self.decision, self.requested, self.tally = UNDECIDED, False, Tally()

    @property
    def is_applied(self) -> bool:
        """Whether the patch is applied, perhaps inside a ``disabled`` block."""
        return self.decision.state is State.APPLIED

    @property
    def is_waiting(self) -> bool:
        """Whether an import may change the decision.

        A function may have been missing only because another thread was importing its module.
        """
        return self.decision.state in (State.PENDING, State.MISSING)


class Patches:
    """The patches of one package. Hold ``LOCK`` while you read what is known of them.

    Args:
      package: name of the package that is patched.
      ids: ids of all patches, in the order in which they are stacked on a shared target.
      load: returns the patch of an id; called when the package is imported, not before.
      settings: what the user set in the environment.
      tested: the releases that the tables of the patches were verified on, oldest first.
      removed: ids of older versions, which do nothing, and what to say if one is named.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # All that the engine knows of optax and of JAX.
        self,
        package: str,
        ids: Sequence[str],
        load: Callable[[str], Patch],
        settings: Settings,
        tested: Sequence[str],
        removed: Mapping[str, str] = {},
    ) -> None:
        self.package, self.ids, self.tested = package, tuple(ids), tuple(tested)
        self.load, self.settings, self.removed = load, settings, removed
        self.points = PatchPoints()
        self.slots = {patch_id: Slot() for patch_id in self.ids}
        self.blocks: list[tuple[str, ...]] = []  # The ids of each open ``disabled`` block.
        self.built_before: Collection[Any] | None = None  # Functions that stay stock.

    def suspended(self) -> set[str]:
        """Return the patches of the open ``disabled`` blocks."""
        return {patch_id for block in tuple(self.blocks) for patch_id in block}

    def layers(self) -> dict[Place, list[WhenCalled]]:
        """List the layers of each wrapped function, without those of suspended patches."""
        found: dict[Place, list[WhenCalled]] = {}
        suspended = self.suspended()
        for patch_id, slot in self.slots.items():
            for place, layer in slot.decision.layers.items():
                acting = found.setdefault(place, [])
                if patch_id not in suspended:
                    acting.append(layer)
        return found

    @contextlib.contextmanager
    def change(self) -> Iterator[list[str]]:
        """Change slots, and make the functions follow, in one step for other threads.

        Yields:
          A list: at the end, it has the names that other code wrapped, and that are not restored.
        """
        foreign: list[str] = []
        with LOCK:
            yield foreign
            stale, foreign[:] = self.points.refresh(self.layers())
        if stale:
            forget_traces()

    def decide(self, ids: Iterable[str], release: Release, judge: Judge) -> dict[str, Decision]:
        """Decide on patches. Where their functions are there, ``judge`` does.

        Holds no lock: loading and probing trigger imports, and another thread may hold the lock of
        that import while it waits for ours.
        """
        decisions = {}
        for patch_id in ids:
            try:
                decisions[patch_id] = self._decide_on(self.load(patch_id), release, judge)
            except Exception as error:  # A broken patch must not break the others, or the import.
                LOGGER.debug("%s could not be decided", patch_id, exc_info=True)
                decisions[patch_id] = failure(error)
        return decisions

    def _decide_on(self, patch: Patch, release: Release, judge: Judge) -> Decision:
        slot = self.slots[patch.id]
        if patch.opt_in and not (slot.requested or self.settings.opted_in(patch.id)):
            return Decision(State.DISABLED, NOT_OPTED_IN)
        targets = [target for target in patch.targets if release.within(target.releases)]
        own = [target for target in targets if target.package == self.package]
        absent = [target for target in targets if defining_module(target) is None]
        missing = [target for target in absent if target in own]
        if patch.allow_missing_targets and not release.tested and len(missing) < len(own):
            targets, missing = [target for target in targets if target not in missing], []
        modules = map(unloaded_module, missing or absent)
        unloaded = tuple(dict.fromkeys(module for module in modules if module))
        if own and not missing:
            decision = judge(self.package, release, patch, targets)
            failed = functools.partial(self.fail, patch.id)
            wrapped = targets if decision.state is State.APPLIED else ()
            layers = {place_of(t): WhenCalled(patch.id, t, slot.tally, failed) for t in wrapped}
            return decision._replace(layers=layers, waits_for=unloaded)
        if missing and unloaded:
            return Decision(State.PENDING, f"{unloaded[0]} {NOT_IMPORTED}", waits_for=unloaded)
        names = ", ".join(dict.fromkeys(target.qualname for target in missing))
        lacks = f"no {names}" if names else "none of the functions of this patch"
        has_fault = release.tested and bool(patch.faults_on(release))
        return Decision(State.MISSING, f"this release has {lacks}", warn=has_fault)

    def record(self, decisions: Mapping[str, Decision]) -> dict[str, Decision]:
        """Record decisions, and apply those patches. Return what is to be reported."""
        news = {}
        with self.change():
            for patch_id, decision in decisions.items():
                slot = self.slots[patch_id]
                if slot.decision is REVERTED or slot.is_applied:  # By another thread.
                    continue
                if decision != slot.decision or self.settings.strict:  # Warn once.
                    news[patch_id] = decision
                slot.decision = decision
        return news

    def fail(self, patch_id: str, error: Exception) -> None:
        """Revert a patch that failed when a function was called: its import, or what it builds.

        In strict mode the layers stay, and each call raises.
        """
        slot, strict = self.slots[patch_id], self.settings.strict
        with self.change():
            if slot.decision == failure(error):  # Another thread was first.
                return
            layers = slot.decision.layers if strict else {}
            slot.decision = failure(error)._replace(layers=layers)
        self.report_problems({patch_id: slot.decision})

    def report_problems(self, outcome: Mapping[str, Decision]) -> None:
        """Warn of what was wanted and not done; in strict mode, raise."""
        for patch_id, decision in outcome.items():
            LOGGER.debug("%s: %s, %s", patch_id, decision.state, decision.reason)
        problems = {i: decision for i, decision in outcome.items() if decision.warn}
        if problems:
            details = "; ".join(f"{i} ({d.state}): {d.reason}" for i, d in problems.items())
            warn_or_raise(
                f"Could not apply {details}. The functions of these patches stay stock. For "
                f"details, run `python -m optax_dtypefix status -v`. To silence this message, set "
                f"OPTAX_DTYPEFIX_DISABLE={','.join(problems)}.",
                strict=self.settings.strict,
            )


def by_table(package: str, release: Release, patch: Patch, _: Sequence[Target]) -> Decision:
    """Decide by the faults that a tested release has."""
    faults = ", ".join(fault.id for fault in patch.faults_on(release))
    if faults:
        return Decision(State.APPLIED, f"{package} {release} has: {faults}")
    none = f"{package} {release} has none of the faults of this patch"
    return Decision(State.NOT_NEEDED, none)


def failure(error: Exception) -> Decision:
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
