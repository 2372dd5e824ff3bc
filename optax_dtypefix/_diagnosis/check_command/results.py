"""Check the user's optimizer on stock and on patched optax, and print the verdict."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

from ..._engine.state import NOT_OPTED_IN, State
from ..processes import STOCK_AND_PATCHED, Written, run_workers
from .optimizer import OptimizerError, OptimizerName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .params import NamedParams

_UNCHANGED = "the same on stock and patched optax"

_KEPT_BY_PRESERVE_DTYPES = {"state", "updates", "scan", "cond"}
"""Kinds of problems that ``preserve_dtypes`` solves."""

_NOT_CHECKED = "half-precision params that your program adds up itself, as p + u"
"""What no patch can reach."""

_ADD_UP = "These are rounded to nearest, and stall: use optax.apply_updates."

_NOTHING_COUNTS = (
    "The state has no step counter, and gradients repeat: use a schedule as learning rate, "
    "or optax_dtypefix.master_weights(tx)."
)
"""What to do about params that do not move, though they are rounded stochastically."""

_ROUNDING = "stochastic_rounding"
"""The patch that moves params, and does nothing else."""

_WRITE_FINDINGS = "optax_dtypefix._diagnosis.check_command.worker:write_findings"


class Verdict(enum.IntEnum):
    """What the command exits with: the worst of all params."""

    FINE = 0
    FIXED = 1
    STAYS = 2


@dataclasses.dataclass(frozen=True)
class ParamsCheck:
    """The optimizer on some params: what each process wrote about them."""

    params: NamedParams
    stock: Mapping[str, Any]
    patched: Mapping[str, Any]

    @property
    def verdict(self) -> Verdict:
        """Whether stock is fine, and if not, whether the patches solve every problem."""
        if self.patched["problems"]:
            return Verdict.STAYS
        return Verdict.FIXED if self.stock["problems"] else Verdict.FINE

    @property
    def needs(self) -> list[str]:
        """The patches that were at work, if they solve a problem."""
        stock, patched = (
            {(problem["check"], problem["kind"], problem["where"]) for problem in side["problems"]}
            for side in (self.stock, self.patched)
        )
        solved = {kind == "params" for _, kind, _ in stock - patched}
        return [patch for patch in self.patched["at_work"] if (patch == _ROUNDING) in solved]

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON. ``notes`` say which values were not compared, and why."""
        notes = (note for side in (self.stock, self.patched) for note in side.get("notes", ()))
        return {
            **self.params._asdict(),
            "verdict": self.verdict.name.lower(),
            "stock": self.stock["problems"],
            "patched": self.patched["problems"],
            "needs": self.needs,
            "notes": list(dict.fromkeys(notes)),
        }

    def lines(self, *, verbose: bool) -> Iterator[str]:
        """Yield a line for each side, or with ``verbose`` for each problem."""
        record = self.as_dict()
        for name in ("stock", "patched"):
            texts = [problem["text"] for problem in record[name]] or ["ok"]
            if not verbose and len(texts) > 1:
                more = "1 more problem" if len(texts) == 2 else f"{len(texts) - 1} more problems"
                texts = [f"{texts[0]} ({more}: -v)"]
            if name == "patched" and self.needs:
                needs = f"needs: {', '.join(self.needs)}"
                texts = [f"ok             {needs}"] if texts == ["ok"] else [*texts, needs]
            yield f"  {name:<8} {texts[0]}"
            yield from (f"{'':11}{text}" for text in texts[1:])
        yield from (f"  note     {note}" for note in record["notes"])


@dataclasses.dataclass(frozen=True)
class OptimizerCheck:
    """The optimizer on all params. ``report`` is the status of the patched process."""

    name: OptimizerName
    report: Mapping[str, Any]
    checks: tuple[ParamsCheck, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of all params."""
        return max(check.verdict for check in self.checks)

    @property
    def _not_checked(self) -> str:
        return _NOT_CHECKED if any("float16" in c.params.params for c in self.checks) else ""

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "target": str(self.name),
            "verdict": self.verdict.name.lower(),
            "not_checked": self._not_checked,
            "needs": list(dict.fromkeys(patch for check in self.checks for patch in check.needs)),
            "cases": [check.as_dict() for check in self.checks],
            **self.report,
        }

    @property
    def conclusion(self) -> str:
        """Whether the optimizer is affected, what is not checked, and what to do next."""
        conclusion, *advice = self._conclusion()
        left_out = f"Not checked: {self._not_checked}. {_ADD_UP}"
        return "\n".join([conclusion, *[left_out] * bool(self._not_checked), *advice])

    def rows(self, *, verbose: bool = False) -> list[str]:
        """Return the lines for each params."""
        lines = []
        for check in self.checks:
            name = f"{self.name.name}, {check.params.name}"
            lines += [name, *check.lines(verbose=verbose), ""]
        return lines

    def _conclusion(self) -> Iterator[str]:
        optax = f"optax {self.report['optax_version']}, jax {self.report['jax_version']}"
        if self.verdict is Verdict.FINE:
            yield f"{optax}: not affected."
            return
        off = [
            patch["id"]
            for patch in self.report["patches"]
            if patch["state"] == State.DISABLED.value and patch["reason"] != NOT_OPTED_IN
        ]
        outcomes: dict[str, list[str]] = {}
        for check in self.checks:
            if check.verdict is not Verdict.FINE:
                outcomes.setdefault(_outcome(check, off), []).append(check.params.name)
        parts = (f"{outcome} in {', '.join(names)}" for outcome, names in outcomes.items())
        what = "problems" if outcomes.keys() == {_UNCHANGED} else "affected"
        yield f"{optax}: {what}; {'; '.join(parts)}."
        if _UNCHANGED in outcomes:
            yield "These may be in your own code, or in another library than optax."
        if self.verdict is not Verdict.STAYS:
            return
        if off:
            yield f"Your OPTAX_DTYPEFIX* variables switch these patches off: {', '.join(off)}."
        left = {problem["kind"] for check in self.checks for problem in check.patched["problems"]}
        if "params" in left and _ROUNDING not in off:
            yield _NOTHING_COUNTS
        if left & _KEPT_BY_PRESERVE_DTYPES:
            yield "To keep its dtypes, use optax_dtypefix.preserve_dtypes(tx)."
        yield "What to do about each problem: `python -m optax_dtypefix check --help`."


def compare(
    name: OptimizerName,
    every: Sequence[NamedParams],
    *,
    x64: bool,
    show: Callable[[OptimizerCheck], None] | None = None,
) -> OptimizerCheck:
    """Check an optimizer on stock and on patched optax.

    Args:
      name: the optimizer.
      every: the params to check it on.
      x64: whether JAX is in 64-bit mode; it is if a param has 64 bits.
      show: if given, called meanwhile with the params that are checked so far, without a report.

    Raises:
      OptimizerError: there is no such optimizer, or it does not run on such params.
      NoOptaxError: optax cannot be imported there.
    """
    mode = "x64" if x64 or any(params.needs_x64 for params in every) else "x32"
    arguments = (*name, mode, *(params.params for params in every))

    def check_of(report: Mapping[str, Any], *sides: list[Mapping[str, Any]]) -> OptimizerCheck:
        checks = tuple(ParamsCheck(*one) for one in zip(every, *sides))
        for check in checks:
            refuse_unfit(name, check)
        return OptimizerCheck(name, report, checks)

    def show_so_far(written: list[Written]) -> None:
        if show:
            show(check_of({}, *map(_findings, written)))

    workers = run_workers(_WRITE_FINDINGS, arguments, STOCK_AND_PATCHED, show_so_far)
    reports = [entry["report"] for entry in workers["patched"].entries if "report" in entry]
    failures = [entry["failure"] for entry in workers["patched"].entries if "failure" in entry]
    if failures:
        raise OptimizerError(failures[0])
    return check_of(reports[-1], *(found_by(written, len(every)) for written in workers.values()))


def found_by(written: Written, count: int) -> list[Mapping[str, Any]]:
    """Return what a process wrote about each params; it may have been killed."""
    failures = [entry["failure"] for entry in written.entries if "failure" in entry]
    why = [*failures, f"no result: the process ended with code {written.code}"][0]
    kind = "build" if written.entries[-1].get("building") else "error"
    problem = {"check": "dtypes", "kind": kind, "where": "", "text": why}
    missing = {"problems": [problem], "unfit": True, "at_work": []}
    found = _findings(written)
    return [*found, *[missing] * (count - len(found))]


def _findings(written: Written) -> list[Mapping[str, Any]]:
    return [entry for entry in written.entries if "problems" in entry]


def refuse_unfit(name: OptimizerName, check: ParamsCheck) -> None:
    """Raise if the optimizer does not run on these params on either side."""
    if check.stock["unfit"] and check.patched["unfit"]:
        problem = check.patched["problems"][0]
        if problem["kind"] == "build":
            raise OptimizerError(f"{name} cannot be built, stock or patched: {problem['text']}")
        advice = (
            "In 32-bit mode JAX has no such integers: write a float, or try --x64"
            if "OverflowError" in problem["text"]
            else "Give params like your own, such as "
            "--params 'w=float32[128,256],layer.b=float32[16]'"
        )
        raise OptimizerError(
            f"{name} does not run on {check.params.params}, stock or patched: {problem['text']}. "
            f"{advice}"
        )


def _outcome(check: ParamsCheck, off: Sequence[str]) -> str:
    if check.verdict is Verdict.FIXED:
        return "fixed"
    if check.stock["problems"] == check.patched["problems"] and not off:
        return _UNCHANGED
    return "not fixed" if check.stock["problems"] else "broken by the patches (please report it)"
