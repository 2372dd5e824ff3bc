"""``doctor``: reproduce each fault of the installed optax, on stock and on patched functions."""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import os
from typing import TYPE_CHECKING, Any

from .. import __version__
from .._engine.state import NOT_OPTED_IN, State
from .._text import table
from .processes import STOCK_AND_PATCHED, Written, run_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_WRITE_OUTCOMES = "optax_dtypefix._diagnosis.doctor_worker:write_outcomes"


class Verdict(str, enum.Enum):
    """What became of a fault, in the order in which the conclusion counts them."""

    STILL_FAILS = "still fails"
    NOT_SHOWN = "not shown"
    FIXED = "fixed"
    FIXED_BY_OTHERS = "fixed by others"
    DISABLED = "disabled"
    OPT_IN = "opt-in"
    NOT_IN_RELEASE = "not in this release"


_FOLDER = os.path.dirname(os.path.dirname(__file__))
_FIXED = (Verdict.FIXED, Verdict.FIXED_BY_OTHERS)
_NEXT_STEPS = {
    Verdict.STILL_FAILS: (
        "Patched optax still has these faults: {faults}. {first}lease report them with the output "
        "of `optax-dtypefix doctor --json`."
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
class FaultResult:
    """One fault. ``stock`` and ``patched`` are the errors there, None if there was none.

    ``fixed_by`` has the patches that fix it, if it is fixed.
    """

    patch: str
    fault: str
    summary: str
    upstream: str
    stock: str | None
    patched: str | None
    verdict: Verdict
    state: str
    reason: str
    fixed_by: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id, as the pages name it."""
        return f"{self.patch}.{self.fault}"

    @property
    def verdict_text(self) -> str:
        """The verdict; where other patches fix the fault, with their names if they are known."""
        if self.verdict is Verdict.FIXED_BY_OTHERS and self.fixed_by:
            return f"fixed by {', '.join(self.fixed_by)}"
        return self.verdict.value

    @property
    def messages(self) -> str:
        """Both messages, in one line."""
        patched = "" if self.patched is None else f"; patched: {self.patched.strip()}"
        return " ".join(f"stock: {(self.stock or 'ok').strip()}{patched}".split())


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What both processes found. ``report`` is the status of the patched one.

    ``asked`` says whether the user named patches or faults.
    """

    report: Mapping[str, Any]
    tested: bool
    rows: tuple[FaultResult, ...]
    asked: bool = False

    @property
    def ok(self) -> bool:
        """Whether patched optax has no fault, stock optax has all of the table, all files fit."""
        wrong = {Verdict.STILL_FAILS, Verdict.NOT_SHOWN} if self.tested else {Verdict.STILL_FAILS}
        return not self.report["installation"] and not any(r.verdict in wrong for r in self.rows)

    @property
    def conclusion(self) -> str:
        """A count of faults per verdict, and what to do next, one line each."""
        optax = f"optax {self.report['optax_version']}"
        counts = collections.Counter(row.verdict for row in self._rows_of_release)
        counted = ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v])
        absent = ", ".join(row.id for row in self.rows) if self.asked else "any of the known faults"
        lines = [f"{optax}: {counted}." if counted else f"{optax} does not have {absent}."]
        lines += self._about_installation
        first = "If they stay after that, p" if lines[1:] else "P"
        for verdict, advice in _NEXT_STEPS.items():
            rows = [row for row in self.rows if row.verdict is verdict]
            if rows and (self.tested or verdict is not Verdict.NOT_SHOWN):
                faults = ", ".join(row.id for row in rows)
                patches = ",".join(dict.fromkeys(row.patch for row in rows))
                lines.append(advice.format(faults=faults, patches=patches, first=first))
        return "\n".join(lines)

    @property
    def _about_installation(self) -> list[str]:
        """Say which files or patches of the installation are broken, one line each."""
        if self.report["installation"]:
            return [self.report["installation"]]
        broken = {row.patch: row.reason for row in self.rows if row.state == State.FAILED.value}
        where = f"in {_FOLDER}. Install optax-dtypefix {__version__} again."
        return [f"{patch} failed ({reason}) {where}" for patch, reason in broken.items()]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, with full messages, for JSON."""
        return {
            **self.report,
            "tested_release": self.tested,
            "ok": self.ok,
            "conclusion": self.conclusion,
            "faults": [dataclasses.asdict(row) for row in self.rows],
        }

    def as_text(
        self, width: int, *, verbose: bool = False, paint: Callable[[str], str] = str
    ) -> str:
        """Return the versions, a table, and the conclusion; details of what was asked for.

        Args:
          width: the number of columns.
          verbose: one line a fault, with its messages, in place of one line a patch.
          paint: adds colour to a cell.
        """
        if self.asked:
            parts = (_in_detail([*mine], paint) for _, mine in self._by_patch)
            return "\n".join([*parts, self.conclusion])
        heading = f"optax {self.report['optax_version']}, jax {self.report['jax_version']}"
        if verbose:
            heading += f"\nin {self.report['optax_location']}"
        if not self.tested:
            heading += "\nNot a tested release: it may have any of the known faults, or none."
        rows = self._rows_of_release
        cells: list[tuple[str, ...]]
        if verbose:
            cells = [("patch", "fault", "verdict", "messages")]
            cells += [(row.patch, row.fault, row.verdict_text, row.messages) for row in rows]
        else:
            cells = [("patch", "state", "faults")]
            cells += [(*key, _summary([*mine])) for key, mine in self._by_patch]
        # A message is not cut, and last.
        lines = [*table(cells, None if verbose else width, paint), ""] if rows else []
        return "\n".join([heading, "", *lines, self.conclusion])

    @property
    def _rows_of_release(self) -> list[FaultResult]:
        return [row for row in self.rows if row.verdict is not Verdict.NOT_IN_RELEASE]

    @property
    def _by_patch(self) -> Iterator[tuple[tuple[str, str], Iterator[FaultResult]]]:
        return itertools.groupby(self._rows_of_release, lambda row: (row.patch, row.state))


def diagnose(ids: Sequence[str]) -> Diagnosis:
    """Run the reproducers of some patches, or of all, on stock and on patched optax.

    Args:
      ids: patches, or faults such as ``multi_steps.inner_drift``; all if empty.

    Raises:
      NoOptaxError: optax cannot be imported there.
    """
    stock, patched = run_workers(_WRITE_OUTCOMES, ids, STOCK_AND_PATCHED).values()
    header = patched.entries[0]
    report = [entry["report"] for entry in patched.entries if "report" in entry][-1]
    states = {state["id"]: state for state in report["patches"]}
    rows = []
    for fault in header["faults"]:
        before, after = (_outcome(written, fault) for written in (stock, patched))
        status = states[fault["patch"]]
        rows.append(_result(fault, before, after, status, tested=header["tested"]))
    return Diagnosis(report, header["tested"], tuple(rows), asked=bool(ids))


def _outcome(written: Written, fault: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a process wrote about a fault."""
    id_ = fault["patch"], fault["fault"]
    missing = {"outcome": f"no outcome: the process ended with code {written.code}"}
    found = (e for e in written.entries if "outcome" in e and (e["patch"], e["fault"]) == id_)
    return next(found, missing)


def _result(
    fault: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    status: Mapping[str, Any],
    *,
    tested: bool,
) -> FaultResult:
    stock, patched = before["outcome"], after["outcome"]
    verdict = _verdict(stock, patched, status)
    if not fault["in_release"]:
        stock = patched = None
    if not fault["in_release"] or (status["state"] == State.MISSING.value and not tested):
        verdict = Verdict.NOT_IN_RELEASE
    return FaultResult(
        patch=fault["patch"],
        fault=fault["fault"],
        summary=fault["summary"],
        upstream=fault["upstream"],
        stock=stock,
        patched=patched,
        verdict=verdict,
        state=status["state"],
        reason=status["reason"],
        fixed_by=tuple(after["fixed_by"]) if verdict in _FIXED else (),
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


def _summary(rows: Sequence[FaultResult]) -> str:
    """Count the fixed faults of a patch, and name those that are not fixed by this patch."""
    fixed = sum(row.verdict in _FIXED for row in rows)
    others: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: list(Verdict).index(row.verdict)):  # The worst first.
        if row.verdict is not Verdict.FIXED:
            others.setdefault(row.verdict_text, []).append(row.fault)
    whole = len(others) == 1 and len(rows) == len(next(iter(others.values())))
    named = (text if whole else f"{text}: {', '.join(faults)}" for text, faults in others.items())
    return "; ".join([f"{fixed}/{len(rows)} fixed", *named])


def _in_detail(rows: Sequence[FaultResult], paint: Callable[[str], str]) -> str:
    """Return a count of the faults of a patch, and every detail of each."""
    heading = f"{rows[0].patch}: {paint(rows[0].state)}, {paint(_summary(rows))}"
    if rows[0].state != State.APPLIED.value:
        heading += f"\n  {rows[0].reason}"
    return "\n\n".join([heading, *(_details(row, paint) for row in rows)]) + "\n"


def _details(row: FaultResult, paint: Callable[[str], str]) -> str:
    sections = {
        "stock": row.stock or "ok",
        "patched": row.patched or "ok",
        "upstream": row.upstream or "no known issue",
    }
    lines = [f"{row.id}: {paint(row.verdict_text)}", f"  {row.summary}"]
    for title, text in sections.items():
        lines += [f"  {title}:", *(f"    {line}" for line in text.strip().splitlines())]
    return "\n".join(lines)
