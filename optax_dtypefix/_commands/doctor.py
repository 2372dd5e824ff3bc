"""``doctor``: each fault of the installed optax, on the stock functions and on the patched ones."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from typing import TYPE_CHECKING, Any

from .._engine.report import State
from .._engine.selection import NOT_ASKED_FOR
from .._text import table
from .worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

FIXED = "fixed"
STILL_FAILS = "still fails"
FIXED_BY_OTHERS = "fixed by others"
DISABLED = "disabled"
OPT_IN = "opt-in"
NOT_SHOWN = "not shown"
NOT_IN_RELEASE = "not in this release"

_WRITE_OUTCOMES = "optax_dtypefix._commands.reproducers:write_outcomes"


@dataclasses.dataclass(frozen=True)
class Row:
    """One fault. ``stock`` and ``patched`` are what went wrong there, None if nothing did."""

    patch: str
    fault: str
    summary: str
    upstream: str
    stock: str | None
    patched: str | None
    verdict: str
    state: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What the two processes showed. ``report`` is the record of the patched one."""

    report: Mapping[str, Any]
    tested: bool
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing still fails, and every fault of the table shows on stock optax."""
        return not self._having(STILL_FAILS) and not self._wrong_in_table

    @property
    def conclusion(self) -> str:
        """The verdict in words, and what to do next, in a line each."""
        return "\n".join(self._sentences())

    def as_json(self) -> str:
        """All of it, with full messages, as JSON text."""
        record = {
            **self.report,
            "tested_release": self.tested,
            "ok": self.ok,
            "conclusion": self.conclusion,
            "faults": [dataclasses.asdict(row) for row in self.rows],
        }
        return json.dumps(record, indent=2)

    def as_text(self, width: int) -> str:
        """Versions, a table with one line a fault, and the conclusion."""
        versions = f"optax {self.report['optax_version']} in {self.report['optax_location']}"
        heading = f"{versions}, jax {self.report['jax_version']}"
        if not self.tested:
            heading += "\nNot a tested release: any of the known faults may be there, or none."
        shown = [row for row in self.rows if row.verdict != NOT_IN_RELEASE]
        lines = _fault_table(shown, width) if shown else []
        return "\n".join([heading, "", *lines, *([""] if lines else []), self.conclusion])

    def as_details(self) -> str:
        """Each fault of this release with all that is said of it, and the conclusion."""
        shown = [row for row in self.rows if row.verdict != NOT_IN_RELEASE]
        return "\n".join([*map(_details, shown), self.conclusion])

    def _having(self, verdict: str) -> list[Row]:
        return [row for row in self.rows if row.verdict == verdict]

    @property
    def _wrong_in_table(self) -> list[Row]:
        """A release outside the table is not bound to have a fault."""
        return self._having(NOT_SHOWN) if self.tested else []

    def _sentences(self) -> Iterator[str]:
        optax = f"optax {self.report['optax_version']}"
        fixed, disabled = self._having(FIXED), self._having(DISABLED)
        failing, wrong = self._having(STILL_FAILS), self._wrong_in_table
        opt_in, by_others = self._having(OPT_IN), self._having(FIXED_BY_OTHERS)
        if failing:
            yield (
                f"{_count(failing)} still there under the shim: {_names(failing)}. Please report "
                f"it with the output of: optax-dtypefix doctor --json."
            )
        if wrong:
            yield (
                f"{_count(wrong)} of the table not shown by stock {optax}: {_names(wrong)}. There "
                f"the table is wrong; please report it."
            )
        if disabled:
            yield f"{_count(disabled)} left in place, as you asked ({_reasons(disabled)})."
        if by_others:
            yield (
                f"{_count(by_others)} fixed by other patches, though not by their own "
                f"({_reasons(by_others)})."
            )
        if opt_in:
            ids = ",".join(dict.fromkeys(row.patch for row in opt_in))
            yield (
                f"{_count(opt_in)} left to you, as what mends them is opt-in: set "
                f"OPTAX_DTYPEFIX_ENABLE={ids} in the environment."
            )
        if fixed:
            every = "" if failing or wrong or disabled or by_others else ", which is all of them"
            every += " that need no opting in" if every and opt_in else ""
            yield f"{_count(fixed)} of stock {optax} fixed under the shim{every}."
        if not (failing or wrong or disabled or by_others or opt_in or fixed):
            yield f"{optax} shows none of the known faults."
        if fixed or failing:
            example = (failing or fixed)[0].patch
            yield (
                f"More about a patch: optax-dtypefix doctor {example}. To switch it off, set "
                f"OPTAX_DTYPEFIX_DISABLE={example} in the environment."
            )
        elif disabled:
            yield "To have them fixed, unset the variable."


def diagnose(ids: Sequence[str] = ()) -> Diagnosis:
    """Runs the demonstrations of some patches, or of all, on stock and on patched optax.

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
        verdict = NOT_IN_RELEASE
    elif status["state"] == State.DISABLED.value:
        verdict = NOT_SHOWN if stock is None else _of_one_that_is_off(patched, status["reason"])
    elif patched is not None:
        verdict = STILL_FAILS
    elif stock is None:
        verdict = NOT_SHOWN
    else:
        verdict = FIXED if status["state"] == State.APPLIED.value else FIXED_BY_OTHERS
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


def _of_one_that_is_off(patched: str | None, reason: str) -> str:
    if patched is None:  # As an optimizer that drifts and what raises around it: each will do.
        return FIXED_BY_OTHERS
    return OPT_IN if reason == NOT_ASKED_FOR else DISABLED


def _unloadable(status: Mapping[str, Any]) -> Row:
    """A patch that cannot even be loaded has no faults to show."""
    return Row(
        patch=status["id"],
        fault="(all)",
        summary="none of its faults can be shown",
        upstream="",
        stock="unknown: the patch could not be loaded",
        patched=status["reason"],
        verdict=STILL_FAILS,
        state=status["state"],
        reason=status["reason"],
    )


def _fault_table(rows: Sequence[Row], width: int) -> list[str]:
    """Lines of at most ``width`` columns, as far as names and verdicts leave room for messages."""
    heading = ("patch", "fault", "stock", "patched", "verdict")
    cells = [(r.patch, r.fault, _line(r.stock), _line(r.patched), r.verdict) for r in rows]
    widths = [max(len(row[column]) for row in [heading, *cells]) for column in range(5)]
    room = max(width - widths[0] - widths[1] - widths[4] - 8, 20)
    patched = min(widths[3], max(room // 2, room - widths[2]))
    limits = (widths[0], widths[1], room - patched, patched, widths[4])
    return table([heading, *(tuple(map(_cut, row, limits)) for row in cells)])


def _details(row: Row) -> str:
    said = {
        "stock": row.stock or "ok",
        "patched": row.patched or "ok",
        "upstream": row.upstream or "no issue was found",
    }
    lines = [f"{row.patch}, {row.fault}: {row.verdict}", f"  {row.summary}"]
    if row.state != State.APPLIED.value:
        lines.append(f"  the patch is {row.state}: {row.reason}")
    for what, words in said.items():
        lines += [f"  {what}:", *(f"    {line}" for line in words.strip().splitlines())]
    return "\n".join([*lines, ""])


def _reasons(rows: Iterable[Row]) -> str:
    """Why the patches of these faults do nothing, each reason once."""
    patches: dict[str, list[str]] = {}
    for row in rows:
        if row.patch not in patches.setdefault(row.reason, []):
            patches[row.reason].append(row.patch)
    return "; ".join(f"{', '.join(ids)}: {reason}" for reason, ids in patches.items())


def _line(message: str | None) -> str:
    return "ok" if message is None else " ".join(message.split())


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _count(rows: Sequence[Row]) -> str:
    return f"{len(rows)} fault{'s' if len(rows) > 1 else ''}"


def _names(rows: Iterable[Row]) -> str:
    return ", ".join(f"{row.patch}/{row.fault}" for row in rows)
