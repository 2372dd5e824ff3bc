"""Report which patches were applied, which were not, and why."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import TYPE_CHECKING, Any

from .. import __version__
from .._engine import release as _release
from .._engine.import_hook import loaded_module
from .._engine.lock import LOCK
from .._engine.state import NOT_IMPORTED, UNDECIDED, Decision, State
from .._text import cut, html_table, suggest, table
from .installation import mixed_installation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .._engine.application import Patches
    from .._engine.patch import Patch


_NEVER_ADDED = (
    "Patches rounded moments in half precision, and `apply_updates` was never called. "
    "Half-precision params that a program adds up itself are rounded to nearest, and small updates "
    "are lost. Call `optax.apply_updates`."
)


@dataclasses.dataclass(frozen=True, repr=False)
class PatchStatus:
    """State of one patch. ``==`` ignores ``reached``.

    Attributes:
      id: the patch.
      state: one of ``pending``, ``applied``, ``not-needed``, ``disabled``, ``unsupported``,
        ``missing``, ``failed``.
      reason: why, as text.
      targets: the wrapped functions, as ``module:qualname``; empty unless applied.
      upstream: links of the upstream issues.
      fixed_in: the first release of optax that does not need the patch; empty if there is none yet.
      opt_in: whether the patch must be enabled by name.
      reached: how often this process called a function of the patch: while it built, traced, or
        took eager steps. A compiled step calls none.
    """

    id: str
    state: State
    reason: str
    targets: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()
    fixed_in: str = ""
    opt_in: bool = False
    reached: int = dataclasses.field(default=0, compare=False)

    def __repr__(self) -> str:
        return cut(f"<PatchStatus {self.id}: {self.state}, {self.effect}>", 100)

    @property
    def effect(self) -> str:
        """What the patch did in this process; if the patch is not applied, the reason."""
        if self.state is not State.APPLIED:
            return self.reason
        if not self.reached:
            return "not reached"
        return "reached once" if self.reached == 1 else f"reached {self.reached} times"

    @property
    def fixed_in_text(self) -> str:
        """``fixed_in``, or ``not yet``; empty while the patch is pending."""
        return self.fixed_in or ("" if self.state is State.PENDING else "not yet")

    @property
    def has_work(self) -> bool:
        """Whether the installed optax needs this patch, or may need it."""
        idle = self.state in (State.NOT_NEEDED, State.MISSING)
        return not (idle or (self.opt_in and self.state is State.DISABLED))

    def as_dict(self) -> dict[str, Any]:
        """Return the status as plain strings, numbers, lists and dicts."""
        return {
            "id": self.id,
            "state": self.state.value,
            "reason": self.reason,
            "targets": list(self.targets),
            "upstream": list(self.upstream),
            "fixed_in": self.fixed_in,
            "opt_in": self.opt_in,
            "reached": self.reached,
        }


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """State of every patch, with the versions of optax and jax.

    Iterate over the report, or look a patch up as in ``report["multi_steps"]``: each is a
    ``PatchStatus``. An unknown id raises ``KeyError``, and the message names the nearest one.

    Attributes:
      optax_version: the installed version, or ``unknown``.
      jax_version: the installed version, or ``not installed``.
      patches: one ``PatchStatus`` a patch.
      optax_location: the folder of optax; empty until optax is imported.
      notes: what the program should do differently, as sentences; mostly nothing.
      installation: which files of optax-dtypefix are of another version, and what to do, as a
        sentence; empty if none is.
    """

    optax_version: str
    jax_version: str
    patches: tuple[PatchStatus, ...]
    optax_location: str = ""
    notes: list[str] = dataclasses.field(default_factory=list, compare=False)
    installation: str = ""

    @property
    def applied(self) -> list[str]:
        """The versions, and the patches that are applied or wait for their module.

        Empty if there are no such patches, so that ``assert status().applied`` is a check.
        """
        applied = self._compared
        return applied if len(applied) > 3 else []

    @property
    def _compared(self) -> list[str]:
        """What a required record is compared with: the versions, these patches, mixed files."""
        versions = {
            "optax-dtypefix": __version__,
            "optax": self.optax_version,
            "jax": self.jax_version,
        }
        waiting = [
            p.id for p in self if p.state is State.APPLIED or p.reason.endswith(NOT_IMPORTED)
        ]
        mixed = ["files of another version"] if waiting and self.installation else []
        return [*map(" ".join, versions.items()), *waiting, *mixed]

    @property
    def digest(self) -> str:
        """Hash of the versions and of these patches: equal if the same are on the same optax."""
        return digest_of(self._compared)

    @property
    def headline(self) -> str:
        """What is applied, in one line."""
        count = sum(patch.state is State.APPLIED for patch in self)
        patches = f"{count} patch" if count == 1 else f"{count} patches"
        return (
            f"optax-dtypefix {__version__}: {patches} on optax {self.optax_version}, "
            f"jax {self.jax_version} (digest {self.digest[:6]})"
        )

    def __iter__(self) -> Iterator[PatchStatus]:
        return iter(self.patches)

    def __len__(self) -> int:
        return len(self.patches)

    def __getitem__(self, patch_id: str) -> PatchStatus:
        for patch in self.patches:
            if patch.id == patch_id:
                return patch
        raise KeyError(f"Unknown patch {patch_id!r}. {suggest(patch_id, [p.id for p in self])}")

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists and strings."""
        return {
            "optax_dtypefix_version": __version__,
            "digest": self.digest,
            "applied": self._compared,
            "optax_version": self.optax_version,
            "jax_version": self.jax_version,
            "optax_location": self.optax_location,
            "patches": [patch.as_dict() for patch in self.patches],
            "notes": self.notes,
            "installation": self.installation,
        }

    def as_json(self) -> str:
        """Return the report as JSON text."""
        import json  # Not at the top: few programs need it.

        return json.dumps(self.as_dict(), indent=2)

    def __repr__(self) -> str:
        return f"<Report: {self.headline}>"

    def __str__(self) -> str:
        return self._as_text(self._effects())

    def _repr_html_(self) -> str:
        return html_table(self._effects())

    def as_text(
        self,
        width: int | None = None,
        *,
        verbose: bool = False,
        paint: Callable[[str], str] = str,
    ) -> str:
        """Return the report as a table of reasons.

        Args:
          width: if given, the number of columns: reasons are cut to one line.
          verbose: wrap reasons in place of cutting them.
          paint: adds colour to a cell.
        """
        rows: list[tuple[str, ...]] = [("patch", "state", "fixed in", "reason")]
        rows += [(p.id, p.state.value, p.fixed_in_text, p.reason) for p in self]
        text = self._as_text(rows, width, paint, None if verbose else 1)
        is_cut = text.count("…") > sum(reason.count("…") for *_, reason in rows)
        return f"{text}\n\n`status -v` shows each reason in full." if is_cut else text

    def _effects(self) -> list[tuple[str, ...]]:
        rows = ((patch.id, patch.state.value, patch.effect) for patch in self)
        return [("patch", "state", "effect"), *rows]

    def _as_text(
        self,
        rows: list[tuple[str, ...]],
        width: int | None = None,
        paint: Callable[[str], str] = str,
        most_lines: int | None = None,
    ) -> str:
        lines = [self.headline, "", *table(rows, width, paint, most_lines)]
        for note in filter(None, (self.installation, *self.notes)):
            lines += ["", note]
        if not any(patch.has_work for patch in self.patches):
            lines += ["", "This optax needs no patches; you can remove `import optax_dtypefix`."]
        return "\n".join(lines)


def digest_of(applied: Sequence[str]) -> str:
    """Hash what is applied, as ``Report.as_dict`` lists it."""
    return hashlib.sha256("\n".join(applied).encode()).hexdigest()


def make_report(patches: Patches) -> Report:
    """Report the state of every patch."""
    package = loaded_module(patches.package)
    # A program without the package does not read the tables.
    declared = {i: _declared(patches, i) if package else ((), "", False) for i in patches.ids}
    with LOCK:
        decisions = {patch_id: decision_now(patches, patch_id) for patch_id in patches.ids}
        rows = tuple(
            PatchStatus(
                patch_id,
                decision.state,
                decision.reason,
                patches.points.paths(patches.slots[patch_id].decision.layers),
                *declared[patch_id],
                reached=patches.slots[patch_id].tally.reached,
            )
            for patch_id, decision in decisions.items()
        )
    return Report(
        optax_version=str(_release.installed(package or patches.package, patches.tested)),
        jax_version=_release.version_of("jax"),
        patches=rows,
        optax_location=os.path.dirname(getattr(package, "__file__", None) or ""),
        notes=_notes_on(patches, {row.id: row for row in rows}),
        installation=mixed_installation(),
    )


def decision_now(patches: Patches, patch_id: str) -> Decision:
    """Return the current decision on a patch, also if it was never decided."""
    with LOCK:
        slot = patches.slots[patch_id]
        disabled_reason = patches.settings.disabled_reason(patch_id)
        if slot.is_applied and patch_id in patches.suspended():
            disabled_reason = "inside a disabled() block"
        if disabled_reason:
            return Decision(State.DISABLED, disabled_reason)
        if slot.decision is UNDECIDED:
            missed = "was imported without triggering the import hook; call optax_dtypefix.apply()"
            state = NOT_IMPORTED if loaded_module(patches.package) is None else missed
            return Decision(State.PENDING, f"{patches.package} {state}")
        lost = patches.points.lost(slot.decision.layers) if slot.is_applied else ""
        if lost:
            return Decision(State.FAILED, f"{lost}; call optax_dtypefix.apply() to patch it again")
        return slot.decision


def _notes_on(patches: Patches, rows: dict[str, PatchStatus]) -> list[str]:
    rounding = rows.get("stochastic_rounding")
    if rounding is None or rounding.reached or rounding.state is not State.APPLIED:
        return []
    in_half = any(slot.tally.in_half for slot in patches.slots.values())
    return [_NEVER_ADDED] if in_half else []


def _declared(patches: Patches, patch_id: str) -> tuple[tuple[str, ...], str, bool]:
    """Return a patch's links, the release that fixes it, and whether it is opt-in."""
    try:
        patch = patches.load(patch_id)
        tested = [_release.Release(text, tested=True) for text in patches.tested]
        return upstream_of(patch), fixed_in(patch, tested), patch.opt_in
    except Exception:  # Its state says why it failed.
        return (), "", False


def upstream_of(patch: Patch) -> tuple[str, ...]:
    """Return the links of the upstream issues, each once, in the order of the faults."""
    return tuple(dict.fromkeys(fault.upstream for fault in patch.faults if fault.upstream))


def fixed_in(patch: Patch, tested: Sequence[_release.Release]) -> str:
    """Return the first tested release after the last one that has a fault of a patch.

    Empty if the newest tested release still has one.
    """
    affected = [i for i, release in enumerate(tested) if patch.faults_on(release)]
    after = tested[affected[-1] + 1 :] if affected else tested
    return str(after[0]) if after else ""
