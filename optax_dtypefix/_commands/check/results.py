"""Compare the user's optimizer on stock and on patched optax, and print the verdict."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import tempfile
from typing import TYPE_CHECKING, Any

from ..._engine.selection import NOT_OPTED_IN
from ..._engine.state import State
from ..._text import cut
from .needs import Needs, find_needs
from .runs import Result, Runner
from .target import Target, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .runs import Run
    from .trees import Case


class Verdict(enum.IntEnum):
    """What the command exits with: the worst of all cases."""

    FINE = 0
    FIXED = 1
    STAYS = 2


@dataclasses.dataclass(frozen=True)
class Row:
    """One case, on stock and on patched optax."""

    case: Case
    stock: Result
    patched: Result
    needs: Needs

    @property
    def verdict(self) -> Verdict:
        """Whether stock is fine, and if not, whether the patches solve every problem."""
        if self.patched.problems:
            return Verdict.STAYS
        return Verdict.FIXED if self.stock.problems else Verdict.FINE


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All cases. ``report`` is the status of the patched process."""

    target: Target
    report: Mapping[str, Any]
    rows: tuple[Row, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of all cases."""
        return max(row.verdict for row in self.rows)

    def as_json(self) -> str:
        """Return everything as JSON text."""
        record = {
            "target": str(self.target),
            "verdict": self.verdict.name.lower(),
            "needs": self._needs(),
            "cases": [
                {
                    "name": row.case.name,
                    "params": row.case.params,
                    "verdict": row.verdict.name.lower(),
                    "stock": [problem._asdict() for problem in row.stock.problems],
                    "patched": [problem._asdict() for problem in row.patched.problems],
                    "needs": row.needs._asdict(),
                }
                for row in self.rows
            ],
            **self.report,
        }
        return json.dumps(record, indent=2)

    def as_text(self, width: int | None, *, verbose: bool = False) -> str:
        """Return some lines a case, and the conclusion.

        Args:
          width: cut lines of cases to this width, unless they are verbose.
          verbose: show all problems, not the first.
        """
        lines = [line for row in self.rows for line in self._lines(row, verbose=verbose)]
        if width is not None and not verbose:
            lines = [cut(line, width) for line in lines]
        return "\n".join([*lines, *self._conclusion()])

    def _lines(self, row: Row, *, verbose: bool) -> Iterator[str]:
        yield f"{self.target.name}, {row.case.name}"
        yield from _side("stock", row.stock, verbose=verbose)
        patched = list(_side("patched", row.patched, verbose=verbose))
        needs = f"needs: {row.needs}" if any(row.needs) else ""
        if needs and not row.patched.problems:
            patched = [f"{patched[0]:<24}  {needs}"]
        elif needs:
            patched.append(f"{'':11}{needs}")
        yield from patched
        yield ""

    def _conclusion(self) -> Iterator[str]:
        optax = f"optax {self.report['optax_version']}, jax {self.report['jax_version']}"
        if self.verdict is Verdict.FINE:
            yield f"{optax}: not affected."
            return
        cases: dict[str, list[str]] = {}
        for row in self.rows:
            if row.stock.problems or row.patched.problems:
                cases.setdefault(_outcome(row), []).append(row.case.name)
        parts = (f"{outcome} in {', '.join(names)}" for outcome, names in cases.items())
        yield f"{optax}: affected; {'; '.join(parts)}."
        off = self._switched_off()
        if self.verdict is Verdict.STAYS and off:
            yield f"Your OPTAX_DTYPEFIX* variables switch these patches off: {', '.join(off)}."

    def _needs(self) -> list[str]:
        """List the patches that any case needs, once."""
        found = [i for row in self.rows for ids in row.needs for i in ids]
        return list(dict.fromkeys(found))

    def _switched_off(self) -> list[str]:
        return [
            patch["id"]
            for patch in self.report["patches"]
            if patch["state"] == State.DISABLED.value and patch["reason"] != NOT_OPTED_IN
        ]


def compare(
    target: Target, cases: Sequence[Case], *, x64: bool, progress: Callable[[int, int], None]
) -> Comparison:
    """Check an optimizer on stock and on patched optax, and find the patches that it needs.

    Args:
      target: the optimizer.
      cases: the params to check it on.
      x64: whether JAX is in 64-bit mode; it is if a param has 64 bits.
      progress: called now and then with the numbers of finished and of all checks.

    Raises:
      TargetError: there is no such optimizer, or it does not run on such params.
      WorkerError: optax cannot be imported there.
    """
    mode = "x64" if x64 or any(case.needs_x64 for case in cases) else "x32"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="optax-dtypefix-"))
        runner = Runner(folder, target, mode, progress)
        ways: dict[str, dict[str, str]] = {"stock": {"OPTAX_DTYPEFIX": "off"}, "patched": {}}
        stock, patched = runner.run(ways, cases).values()
        if patched.failure is not None:
            raise TargetError(patched.failure)
        for case in cases:
            _check_fits(target, case, stock, patched)
        fixed = [c for c in cases if stock.results[c].has_others_than(patched.results[c])]
        needs = find_needs(runner, patched, fixed) if fixed else {}
    rows = [Row(c, stock.results[c], patched.results[c], needs.get(c, Needs())) for c in cases]
    return Comparison(target, patched.report, tuple(rows))


def _check_fits(target: Target, case: Case, stock: Run, patched: Run) -> None:
    if stock.results[case].unfit and patched.results[case].unfit:
        problem = patched.results[case].problems[0]
        if problem.kind == "build":
            raise TargetError(f"{target} cannot be built, stock or patched: {problem.text}")
        raise TargetError(
            f"{target} does not run on {case.params}, stock or patched: {problem.text}. "
            f"Give params like your own, such as --params 'w=float32[128,256],layer.b=float32[16]'"
        )


def _outcome(row: Row) -> str:
    if row.verdict is Verdict.FIXED:
        return "fixed"
    return "not fixed" if row.stock.problems else "broken by the patches (please report it)"


def _side(name: str, result: Result, *, verbose: bool) -> Iterator[str]:
    texts = [problem.text for problem in result.problems] or ["ok"]
    if not verbose and len(texts) > 1:
        texts = [f"{texts[0]}, and {len(texts) - 1} more"]
    yield f"  {name:<8} {texts[0]}"
    yield from (f"{'':11}{text}" for text in texts[1:])
