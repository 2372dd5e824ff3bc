"""``doctor``: reproduce each fault of the installed optax, on stock and on patched functions."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
from typing import TYPE_CHECKING, Any

from .. import __version__
from .._engine.state import NOT_OPTED_IN, State
from .._text import table
from .fault_result import FIXED, FaultResult, Verdict, in_detail, summary
from .processes import STOCK_AND_PATCHED, Written, run_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_WRITE_OUTCOMES = "optax_dtypefix._diagnosis.doctor_worker:write_outcomes"


_FOLDER = os.path.dirname(os.path.dirname(__file__))
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
class Diagnosis:
    """What both processes found. ``report`` is the status of the patched one.

    ``asked`` says whether the user named patches or faults, and ``complete`` whether this is all.
    """

    report: Mapping[str, Any]
    tested: bool
    rows: tuple[FaultResult, ...]
    asked: bool = False
    complete: bool = True

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

    def rows_as_text(
        self, width: int, *, verbose: bool = False, paint: Callable[[str], str] = str
    ) -> list[str]:
        """Return the versions and a table, or details of what was asked for.

        The lines of some patches are the first of those of all, but not with ``verbose``: there,
        columns are as wide as their widest cells.

        Args:
          width: the number of columns.
          verbose: one line a fault, with its messages, in place of one line a patch.
          paint: adds colour to a cell.
        """
        if self.asked:
            return [in_detail([*mine], paint) for _, mine in self._by_patch]
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
            cells += [(*key, summary([*mine])) for key, mine in self._by_patch]
        # A message is not cut, and last.
        least = () if verbose else self._least_widths
        lines = table(cells, None if verbose else width, paint, least=least) if rows else []
        return [heading, "", *lines, *[""] * self.complete * bool(rows)]

    @property
    def _least_widths(self) -> tuple[int, ...]:
        patches = self.report.get("patches", ())
        return tuple(max([0, *(len(p[key]) for p in patches)]) for key in ("id", "state"))

    @property
    def count(self) -> int:
        """The number of faults that the release may have."""
        return len(self._rows_of_release)

    @property
    def _rows_of_release(self) -> list[FaultResult]:
        return [row for row in self.rows if row.verdict is not Verdict.NOT_IN_RELEASE]

    @property
    def _by_patch(self) -> Iterator[tuple[tuple[str, str], Iterator[FaultResult]]]:
        return itertools.groupby(self._rows_of_release, lambda row: (row.patch, row.state))


def diagnose(ids: Sequence[str], show: Callable[[Diagnosis], None] | None = None) -> Diagnosis:
    """Run the reproducers of some patches, or of all, on stock and on patched optax.

    Args:
      ids: patches, or faults such as ``multi_steps.inner_drift``; all if empty.
      show: if given, called meanwhile with the patches whose faults are reproduced so far.

    Raises:
      NoOptaxError: optax cannot be imported there.
    """

    def show_so_far(written: list[Written]) -> None:
        if show and all(process.entries for process in written):
            show(_read(*written, asked=bool(ids), complete=False))

    workers = run_workers(_WRITE_OUTCOMES, ids, STOCK_AND_PATCHED, show_so_far)
    return _read(*workers.values(), asked=bool(ids), complete=True)


def _read(stock: Written, patched: Written, *, asked: bool, complete: bool) -> Diagnosis:
    """Read what both processes wrote: until both have written about a patch, that is left out."""
    header = patched.entries[0]
    report = [entry["report"] for entry in patched.entries if "report" in entry][-1]
    states = {state["id"]: state for state in report["patches"]}
    # A patch may fail when a reproducer calls it.
    states.update((e["patch"], e["status"]) for e in patched.entries if "status" in e)
    rows: list[FaultResult] = []
    for patch, mine in itertools.groupby(header["faults"], lambda fault: fault["patch"]):
        pairs = [(fault, *(_outcome(of, fault) for of in (stock, patched))) for fault in mine]
        waits = any(f["in_release"] and not ("patch" in a and "patch" in b) for f, a, b in pairs)
        if waits and not complete:
            break
        for fault, before, after in pairs:
            rows.append(_result(fault, before, after, states[patch], tested=header["tested"]))
    return Diagnosis(report, header["tested"], tuple(rows), asked, complete)


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
        fixed_by=tuple(after["fixed_by"]) if verdict in FIXED else (),
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
