"""Compare the runs of a problem: what is not finite, off, or stalls."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from .result import Violation
from .trial import Inputs, RandomProblem, Run, StepResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHORT = 24
"""Steps of the runs that need no long sums."""

_AS_ROUNDING = 4.0
"""An error of this many times the one that the rounding of the state explains is no fault."""

_IN_HALF, _IN_FLOAT = 0.15, 0.01
"""An update may be off by this fraction, where some leaf is in half precision, and elsewhere."""

_STATISTIC = 0.01
"""A statistic may be off by this fraction."""

_WINDOW = 8
"""Errors of updates are averaged over so many steps: a sign that flips is no fault."""


@dataclasses.dataclass(frozen=True)
class _Scenario:
    """A sequence of gradients of one scale, of which the first ``zeros`` are zero."""

    name: str
    scale: float = 1.0
    zeros: int = 0
    long: bool = False


_SCENARIOS = (
    _Scenario("", long=True),
    _Scenario("after gradients of 0", zeros=2),
    _Scenario("gradients of about 64", scale=64.0),
    _Scenario("gradients of about 0.03", scale=2.0**-5),
)


def find_violations(
    problem: RandomProblem, steps: int, notes: dict[str, None]
) -> Iterator[Violation]:
    """Run a problem with gradients of several kinds, and yield what is wrong.

    Args:
      problem: to be run.
      steps: of the longest run.
      notes: gets what is not compared, and why.
    """
    # The gradients of a given loss are what they are.
    scenarios = _SCENARIOS[:1] if problem.searches else _SCENARIOS
    for seed, scenario in enumerate(scenarios):
        long = scenario.long and problem.has_sums
        count = steps if long else min(steps, _SHORT)
        trial = _Trial(problem, scenario, count, np.random.default_rng(seed))
        yield from trial.problems()
        notes.update(dict.fromkeys(trial.notes))
    yield from _after_nan(problem, min(steps, _SHORT))


class _Trial:
    """The runs of one scenario."""

    def __init__(
        self, problem: RandomProblem, scenario: _Scenario, steps: int, rng: np.random.Generator
    ) -> None:
        self._problem = problem
        self._scenario = scenario
        self.notes: list[str] = []
        self.inputs, self._exact = _exact_run(problem, scenario, steps, rng)
        user = Run(problem, self.inputs[0])
        self._stored = user.array_dtypes()
        self.user = [user.step(step) for step in self.inputs]
        if problem.searches and self._exact:
            self._exact = _until_converged(self._exact)

    def problems(self) -> Iterator[Violation]:
        """Yield what is wrong, at most once for each leaf and kind."""
        broken = list(_not_finite(self._problem, self.user))
        yield from self._named(broken)
        if broken:
            return
        if self._problem.random:
            self.notes.append("updates are random: only checked for numbers that are not finite")
            return
        if self._problem.coarse:
            self.notes.append("float8: only checked for numbers that are not finite")
            return
        if not self._exact:
            self.notes.append("the exact run fails: only checked for numbers that are not finite")
            return
        rounded = Run(self._problem, self.inputs[0], exact=True, stored=self._stored)
        self._rounded = [rounded.step(step) for step in self.inputs]
        yield from self._named(self._updates())
        if not self._problem.searches:  # Which decides by differences of nearly equal losses.
            yield from self._named(self._statistics())

    def _named(self, found: Any) -> Iterator[Violation]:
        for one in found:
            yield dataclasses.replace(one, gradients=self._scenario.name)

    def _updates(self) -> Iterator[Violation]:
        for leaf, where in enumerate(self._problem.paths):
            exact = [outcome.updates[leaf] for outcome in self._exact]
            errors, explained = (
                _errors([outcome.updates[leaf] for outcome in run], exact)
                for run in (self.user, self._rounded)
            )
            # Without gradients, the update is 0 or what rounding leaves of a difference.
            for step in range(self._scenario.zeros, len(errors)):
                window = slice(max(self._scenario.zeros, step + 1 - _WINDOW), step + 1)
                error = float(np.mean(errors[window]))
                rounding = max(explained[: step + 1])
                # An error as large as the update is no rounding, unless storing it takes as much.
                most = max(min(1.0, _AS_ROUNDING * rounding), 2 * rounding)
                if error > max(most, self._tolerance()):
                    yield self._wrong_update(leaf, where, step, error)
                    break

    def _tolerance(self) -> float:
        if self._problem.searches:
            return 1.0  # A step may be twice as long as another, and both are right.
        return _IN_HALF if self._problem.half else _IN_FLOAT

    def _wrong_update(self, leaf: int, where: str, step: int, error: float) -> Violation:
        got, wanted = (
            float(np.mean(np.abs(run[step].updates[leaf]))) for run in (self.user, self._exact)
        )
        if got == 0:
            return Violation("stalls", where, f"zero instead of {wanted:.2g}", step + 1)
        message = f"off by {error:.0%}: size {got:.3g} instead of {wanted:.3g}"
        return Violation("update", where, message, step + 1)

    def _statistics(self) -> Iterator[Violation]:
        for name in self.user[0].scalars:
            user, exact, rounded = (
                [outcome.scalars.get(name) for outcome in run]
                for run in (self.user, self._exact, self._rounded)
            )
            most = _STATISTIC
            for step, (got, wanted, explained) in enumerate(zip(user, exact, rounded)):
                if wanted is None or explained is None or not np.isfinite(wanted):
                    break
                size = max(abs(wanted), 1e-30)
                most = max(most, min(_AS_ROUNDING * abs(explained - wanted) / size, 0.5))
                error = abs(got - wanted) / size
                if not error <= most:
                    before = max(0, step - 2)
                    stalled = got == user[before] and wanted != exact[before]
                    kind = "stalls" if stalled else "statistic"
                    message = f"{got:.6g} instead of {wanted:.6g}"
                    yield Violation(kind, name, message, step + 1)
                    break


def _exact_run(
    problem: RandomProblem, scenario: _Scenario, steps: int, rng: np.random.Generator
) -> tuple[list[Inputs], list[StepResult]]:
    """Run a problem exactly. Return the inputs of its steps, and no outcomes if it fails."""
    start = problem.start(rng)
    params, run, inputs, outcomes = start, None, [], []
    failed = False
    for step in range(steps):
        scale = 0.0 if step < scenario.zeros else scenario.scale
        inputs.append(problem.inputs(params, start, step, scale, rng))
        if failed:
            continue
        try:
            run = run or Run(problem, inputs[0], exact=True)
            outcomes.append(run.step(inputs[-1]))
        except Exception:
            failed = True
            continue
        params = _moved(params, outcomes[-1].updates)
        failed = not all(np.all(np.isfinite(u)) for u in outcomes[-1].updates)
    return inputs, [] if failed else outcomes


def _moved(params: list[Any], updates: list[Any]) -> list[Any]:
    if [np.shape(p) for p in params] != [np.shape(u) for u in updates]:
        return params  # ``lookahead`` has other params.
    # Some transformations give gradients, which go uphill: keep away from infinity.
    return [_within(p + u, 2.0) for p, u in zip(params, updates)]


def _within(numbers: Any, limit: float) -> Any:
    """Limit the size of real or complex numbers."""
    return numbers / np.maximum(1.0, np.abs(numbers) / limit)


def _until_converged(outcomes: list[StepResult]) -> list[StepResult]:
    """Return the steps before updates are small: then a line search decides by rounding errors."""
    sizes = [max(np.max(np.abs(u), initial=0.0) for u in step.updates) for step in outcomes]
    largest = int(np.argmax(sizes))
    small = (i for i, size in enumerate(sizes) if i > largest and size < 0.5 * sizes[largest])
    return outcomes[: next(small, None)]


def _errors(got: list[Any], wanted: list[Any]) -> list[float]:
    """Return the mean error of each step, as a fraction of the mean size that an update has."""
    if not np.size(wanted[0]):
        return [0.0] * len(wanted)
    sizes = [float(np.mean(np.abs(update))) for update in wanted]
    least = max(0.1 * max(sizes), 1e-30)  # Next to a large update, a tiny one need not be exact.
    errors = [float(np.mean(np.abs(a - b))) for a, b in zip(got, wanted)]
    tiny = 2.0**-23  # Twice the smallest float16 above zero.
    return [
        0.0 if error <= tiny else error / max(size, least) for error, size in zip(errors, sizes)
    ]


def _not_finite(problem: RandomProblem, outcomes: Sequence[StepResult]) -> Iterator[Violation]:
    for leaf, where in enumerate(problem.paths):
        for step, outcome in enumerate(outcomes):
            update = outcome.updates[leaf]
            if not np.all(np.isfinite(update)):
                what = "nan" if np.any(np.isnan(update)) else "inf"
                yield Violation("not finite", where, what, step + 1)
                break


def _after_nan(problem: RandomProblem, steps: int) -> Iterator[Violation]:
    """Compare a run whose first gradients are NaN with the same run without."""
    rng = np.random.default_rng(0)
    inputs, _ = _exact_run(problem, _SCENARIOS[0], steps, rng)
    bad = problem.with_nan(inputs[0])
    clean, run = Run(problem, bad), Run(problem, bad)
    without = [clean.step(step) for step in inputs]
    after = [run.step(step) for step in (bad, *inputs[1:])]
    usual, sizes = (
        np.asarray([[np.max(np.abs(u), initial=0.0) for u in step.updates] for step in steps])
        for steps in (without, after)
    )
    held = ~np.any(usual, axis=1)
    if not len(without) / 3 <= np.sum(held) < len(without):
        return  # Gradients are not accumulated: what NaN does to this state is its own way.
    gradients = "after NaN gradients"
    for leaf, where in enumerate(problem.paths):
        leaked = held & ~np.isfinite(sizes[:, leaf])
        if np.any(leaked):
            message = "nan where finite gradients give 0"
            step = int(np.argmax(leaked)) + 1
            yield Violation("not finite", where, message, step, gradients)
        if np.any(usual[1:, leaf]) and not np.any(sizes[1:, leaf]):
            message = "zero updates from then on"
            yield Violation("stalls", where, message, 2, gradients)
