"""``doctor``: reproduce each fault of the installed optax, on stock and on patched functions."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import json
import tempfile
from typing import TYPE_CHECKING, Any

from .._engine.report import State
from .._engine.selection import NOT_OPTED_IN
from .._text import table
from .worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WRITE_OUTCOMES = "optax_dtypefix._commands.reproducers:write_outcomes"


class Verdict(str, enum.Enum):
    """What became of a fault, in the order in which the conclusion counts them."""

    STILL_FAILS = "still fails"
    NOT_SHOWN = "not shown"
    FIXED = "fixed"
    FIXED_BY_OTHERS = "fixed by others"
    DISABLED = "disabled"
    OPT_IN = "opt-in"
    NOT_IN_RELEASE = "not in this release"


_NEXT_STEPS = {
    Verdict.STILL_FAILS: (
        "Patched optax still has these faults: {faults}. Please report them with the output of "
        "`optax-dtypefix doctor --json`."
    ),
    Verdict.NOT_SHOWN: (
        "Stock optax does not have these faults: {faults}. The table of the patch is wrong; please "
        "report it."
    ),
    Verdict.DISABLED: (
        "Your settings disable these patches: {patches}. Unset the OPTAX_DTYPEFIX* variable to fix "
        "their faults."
    ),
    Verdict.OPT_IN: "To fix the opt-in faults too, set OPTAX_DTYPEFIX_ENABLE={patches}.",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One fault. ``stock`` and ``patched`` are the errors there, None if there was none."""

    patch: str
    fault: str
    summary: str
    upstream: str
    stock: str | None
    patched: str | None
    verdict: Verdict
    state: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The outcomes of both processes. ``report`` is the status of the patched one."""

    report: Mapping[str, Any]
    tested: bool
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether patched optax has no fault, and stock optax has every fault of the table."""
        wrong = {Verdict.STILL_FAILS, Verdict.NOT_SHOWN} if self.tested else {Verdict.STILL_FAILS}
        return not any(row.verdict in wrong for row in self.rows)

    @property
    def conclusion(self) -> str:
        """A count of faults per verdict, and what to do next, one line each."""
        return "\n".join(self._conclusion())

    def as_json(self) -> str:
        """Return all of it, with full messages, as JSON text."""
        record = {
            **self.report,
            "tested_release": self.tested,
            "ok": self.ok,
            "conclusion": self.conclusion,
            "faults": [dataclasses.asdict(row) for row in self.rows],
        }
        return json.dumps(record, indent=2)

    def as_text(self, width: int) -> str:
        """Return the versions, a table with one line a fault, and the conclusion."""
        versions = f"optax {self.report['optax_version']} in {self.report['optax_location']}"
        heading = f"{versions}, jax {self.report['jax_version']}"
        if not self.tested:
            heading += "\nNot a tested release: it may have any of the known faults, or none."
        rows = self._rows_of_release
        lines = [*_fault_table(rows, width), ""] if rows else []
        return "\n".join([heading, "", *lines, self.conclusion])

    def as_details(self) -> str:
        """Return every detail of each fault of this release, and the conclusion."""
        return "\n".join([*map(_details, self._rows_of_release), self.conclusion])

    @property
    def _rows_of_release(self) -> list[Row]:
        return [row for row in self.rows if row.verdict is not Verdict.NOT_IN_RELEASE]

    def _conclusion(self) -> Iterator[str]:
        optax = f"optax {self.report['optax_version']}"
        counts = collections.Counter(row.verdict for row in self._rows_of_release)
        counted = ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v])
        yield f"{optax}: {counted}." if counted else f"{optax} has none of the known faults."
        for verdict, advice in _NEXT_STEPS.items():
            rows = [row for row in self.rows if row.verdict is verdict]
            if rows and (self.tested or verdict is not Verdict.NOT_SHOWN):
                faults = ", ".join(f"{row.patch}/{row.fault}" for row in rows)
                patches = ",".join(dict.fromkeys(row.patch for row in rows))
                yield advice.format(faults=faults, patches=patches)


def diagnose(ids: Sequence[str] = ()) -> Diagnosis:
    """Run the reproducers of some patches, or of all, on stock and on patched optax.

    Raises:
      WorkerError: optax cannot be imported there.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="optax-dtypefix-"))
        off = {"OPTAX_DTYPEFIX": "off"}
        stock = stack.enter_context(Worker(folder, "stock", _WRITE_OUTCOMES, ids, off))
        patched = stack.enter_context(Worker(folder, "patched", _WRITE_OUTCOMES, ids))
        before, after = _outcomes(stock), _outcomes(patched)
    states = {status["id"]: status for status in after.report["patches"]}
    rows = [_row(fault, before, after, states[fault["patch"]]) for fault in after.faults]
    asked = [state for patch_id, state in states.items() if not ids or patch_id in ids]
    broken = [state for state in asked if state["state"] == State.FAILED.value]
    rows += [_unloadable(state) for state in broken if state["id"] not in {r.patch for r in rows}]
    return Diagnosis(after.report, after.tested, tuple(rows))


class _Outcomes:
    """What a worker wrote."""

    def __init__(self, entries: Sequence[Mapping[str, Any]], missing: str) -> None:
        self.report: Mapping[str, Any] = [e["report"] for e in entries if "report" in e][-1]
        self.tested: bool = entries[0]["tested"]
        self.faults: list[Mapping[str, Any]] = entries[0]["faults"]
        self._missing = missing
        self._messages: dict[tuple[str, str], str | None] = {
            (entry["patch"], entry["fault"]): entry["outcome"]
            for entry in entries
            if "outcome" in entry
        }

    def of(self, fault: Mapping[str, Any]) -> str | None:
        if not fault["in_release"]:
            return None
        return self._messages.get((fault["patch"], fault["fault"]), self._missing)


def _outcomes(worker: Worker) -> _Outcomes:
    return _Outcomes(worker.entries(), f"no outcome: the process ended with code {worker.code}")


def _row(
    fault: Mapping[str, Any], before: _Outcomes, after: _Outcomes, status: Mapping[str, Any]
) -> Row:
    stock, patched = before.of(fault), after.of(fault)
    gone = status["state"] == State.MISSING.value and not after.tested
    if not fault["in_release"] or gone:
        verdict = Verdict.NOT_IN_RELEASE
    else:
        verdict = _verdict(stock, patched, status)
    return Row(
        patch=fault["patch"],
        fault=fault["fault"],
        summary=fault["summary"],
        upstream=fault["upstream"],
        stock=stock,
        patched=patched,
        verdict=verdict,
        state=status["state"],
        reason=status["reason"],
    )


def _verdict(stock: str | None, patched: str | None, status: Mapping[str, Any]) -> Verdict:
    disabled = status["state"] == State.DISABLED.value
    if patched is not None and not disabled:
        return Verdict.STILL_FAILS
    if stock is None:
        return Verdict.NOT_SHOWN
    if patched is not None:
        return Verdict.OPT_IN if status["reason"] == NOT_OPTED_IN else Verdict.DISABLED
    # Another patch can fix a fault too: the patch of an optimizer that drifts also fixes the error
    # that a wrapper around this optimizer raises.
    applied = status["state"] == State.APPLIED.value
    return Verdict.FIXED if applied else Verdict.FIXED_BY_OTHERS


def _unloadable(status: Mapping[str, Any]) -> Row:
    """Return the row of a patch that cannot be loaded, and so has no list of faults."""
    return Row(
        patch=status["id"],
        fault="(all)",
        summary="the patch cannot be loaded, so its faults are unknown",
        upstream="",
        stock="unknown: the patch cannot be loaded",
        patched=status["reason"],
        verdict=Verdict.STILL_FAILS,
        state=status["state"],
        reason=status["reason"],
    )


def _fault_table(rows: Sequence[Row], width: int) -> list[str]:
    """Return lines of at most ``width`` columns, if names and verdicts leave room for messages."""
    heading = ("patch", "fault", "stock", "patched", "verdict")
    cells = [(r.patch, r.fault, _line(r.stock), _line(r.patched), r.verdict.value) for r in rows]
    widths = [max(len(row[column]) for row in [heading, *cells]) for column in range(5)]
    room = max(width - widths[0] - widths[1] - widths[4] - 8, 20)
    patched = min(widths[3], max(room // 2, room - widths[2]))
    limits = (widths[0], widths[1], room - patched, patched, widths[4])
    return table([heading, *(tuple(map(_cut, row, limits)) for row in cells)])


def _details(row: Row) -> str:
    sections = {
        "stock": row.stock or "ok",
        "patched": row.patched or "ok",
        "upstream": row.upstream or "no known issue",
    }
    lines = [f"{row.patch}, {row.fault}: {row.verdict.value}", f"  {row.summary}"]
    if row.state != State.APPLIED.value:
        lines.append(f"  the patch is {row.state}: {row.reason}")
    for title, text in sections.items():
        lines += [f"  {title}:", *(f"    {line}" for line in text.strip().splitlines())]
    return "\n".join([*lines, ""])


def _line(message: str | None) -> str:
    return "ok" if message is None else " ".join(message.split())


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
