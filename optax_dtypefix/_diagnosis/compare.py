"""Compare the runs of a problem: what is not finite, off, or stalls."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from .._contract.dtypes import is_inexact
from .result import Violation
from .trial import Run, StepResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .random_problem import Inputs, RandomProblem

_SHORT = 24
"""Steps of the runs that need no long sums."""

_AS_ROUNDING = 4.0
"""An error may be so many times the one that the rounding of the state explains."""

_IN_HALF, _IN_FLOAT = 0.15, 0.01
"""An update may be off by this fraction, where some leaf is in half precision, and elsewhere."""

_STATISTIC = 0.01
"""A statistic may be off by this fraction."""

_WINDOW = 8
"""Errors of updates are averaged over so many steps: a sign may flip."""

_SEVERAL = 2
"""So many updates, after the one that NaN may cost, show whether the rest are zero."""


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
    short = min(steps, _SHORT)
    (first,), _ = _exact_run(problem, _SCENARIOS[0], 1, seed=0)
    # A float scalar of the state may be a sum.
    has_sums = any(map(is_inexact, Run(problem, first).scalars().values()))
    long = steps if has_sums else short
    incomparable = "updates are random" if problem.is_random(first) else ""
    if problem.half and Run(problem, first).rounds_params:
        incomparable = "updates hold the rounding of the params"
    # The gradients of a given loss are what they are.
    scenarios = _SCENARIOS[:1] if problem.searches else _SCENARIOS
    for seed, scenario in enumerate(scenarios):
        inputs, exact = _exact_run(problem, scenario, long if scenario.long else short, seed)
        run = Run(problem, inputs[0])
        stored = run.array_dtypes()
        user = list(map(run.step, inputs))
        broken = list(_not_finite(problem, user))
        reason = incomparable or ("float8" if problem.coarse else "the exact run fails")
        if not broken and (incomparable or problem.coarse or not exact):
            notes[f"{reason}: only checked for numbers that are not finite"] = None
        elif not broken:
            run = Run(problem, inputs[0], exact=True, stored=stored)
            rounded = list(map(run.step, inputs))
            broken = list(_wrong_values(problem, scenario.zeros, user, exact, rounded))
        yield from (dataclasses.replace(one, gradients=scenario.name) for one in broken)
    yield from _find_stall_after_nan(problem, steps)


def _wrong_values(
    problem: RandomProblem,
    zeros: int,
    user: list[StepResult],
    exact: list[StepResult],
    rounded: list[StepResult],
) -> Iterator[Violation]:
    """Yield what is wrong in one scenario, at most once for each leaf and kind."""
    if problem.searches:
        # A line search decides by differences of nearly equal losses.
        yield from _wrong_updates(problem, zeros, user, _cut_converged(exact), rounded)
    else:
        yield from _wrong_updates(problem, zeros, user, exact, rounded)
        yield from _wrong_statistics(user, exact, rounded)


def _wrong_updates(
    problem: RandomProblem,
    zeros: int,
    user: list[StepResult],
    exact: list[StepResult],
    rounded: list[StepResult],
) -> Iterator[Violation]:
    tolerance = _IN_HALF if problem.half else _IN_FLOAT
    if problem.searches:
        tolerance = 1.0  # A step may be twice as long as another, and both are right.
    for leaf, where in enumerate(problem.paths):
        got, wanted, explained = (
            [step.updates[leaf] for step in run] for run in (user, exact, rounded)
        )
        errors, roundings = _errors(got, wanted), _errors(explained, wanted)
        # Without gradients, the update is 0 or what rounding leaves of a difference.
        for step in range(zeros, len(errors)):
            window = slice(max(zeros, step + 1 - _WINDOW), step + 1)
            error = float(np.mean(errors[window]))
            rounding = max(roundings[: step + 1])
            # An error as large as the update is no rounding, unless storing it takes as much.
            most = max(min(1.0, _AS_ROUNDING * rounding), 2 * rounding)
            if error > max(most, tolerance):
                is_, should = (float(np.mean(np.abs(run[step]))) for run in (got, wanted))
                if is_ == 0:
                    yield Violation("stalls", where, f"zero instead of {should:.2g}", step + 1)
                else:
                    message = f"off by {error:.0%}: size {is_:.3g} instead of {should:.3g}"
                    yield Violation("update", where, message, step + 1)
                break


def _wrong_statistics(
    user: list[StepResult], exact: list[StepResult], rounded: list[StepResult]
) -> Iterator[Violation]:
    for name in user[0].scalars:
        ours, theirs, roundings = (
            [step.scalars.get(name) for step in run] for run in (user, exact, rounded)
        )
        most = _STATISTIC
        for step, (got, wanted, explained) in enumerate(zip(ours, theirs, roundings)):
            if wanted is None or explained is None or not np.isfinite(wanted):
                break
            size = max(abs(wanted), 1e-30)
            most = max(most, min(_AS_ROUNDING * abs(explained - wanted) / size, 0.5))
            error = abs(got - wanted) / size
            if not error <= most:
                before = max(0, step - 2)
                stalled = got == ours[before] and wanted != theirs[before]
                kind = "stalls" if stalled else "statistic"
                message = f"{got:.6g} instead of {wanted:.6g}"
                yield Violation(kind, name, message, step + 1)
                break


def _exact_run(
    problem: RandomProblem, scenario: _Scenario, steps: int, seed: int
) -> tuple[list[Inputs], list[StepResult]]:
    """Run a problem exactly. Return the inputs of its steps, and no outcomes if it fails."""
    rng = np.random.default_rng(seed)
    start = problem.start(rng)
    params, run = start, None
    inputs: list[Inputs] = []
    outcomes: list[StepResult] = []
    for step in range(steps):
        scale = 0.0 if step < scenario.zeros else scenario.scale
        inputs.append(problem.inputs(params, start, step, scale, rng))
        if len(outcomes) < step:
            continue  # It has failed; the user's run goes on.
        with contextlib.suppress(Exception, SystemExit):
            run = run or Run(problem, inputs[0], exact=True)
            outcome = run.step(inputs[-1])
            if all(np.all(np.isfinite(update)) for update in outcome.updates):
                outcomes.append(outcome)
                params = _moved(params, outcome.updates)
    return inputs, outcomes if len(outcomes) == steps else []


def _moved(params: list[Any], updates: list[Any]) -> list[Any]:
    if [np.shape(p) for p in params] != [np.shape(u) for u in updates]:
        return params  # ``lookahead`` has other params.
    # Some transformations give gradients, which go uphill: keep away from infinity.
    return [_limit_size(p + u, 2.0) for p, u in zip(params, updates)]


def _limit_size(numbers: Any, limit: float) -> Any:
    """Limit the size of real or complex numbers."""
    return numbers / np.maximum(1.0, np.abs(numbers) / limit)


def _cut_converged(outcomes: list[StepResult]) -> list[StepResult]:
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
        for step, outcome in enumerate(outcomes, 1):
            update = outcome.updates[leaf]
            if not np.all(np.isfinite(update)):
                message = "nan" if np.any(np.isnan(update)) else "inf"
                yield Violation("not finite", where, message, step)
                break


def _find_stall_after_nan(problem: RandomProblem, steps: int) -> Iterator[Violation]:
    """Check that updates go on after a step of NaN, unless they are NaN themselves.

    NaN updates are no violation: without a guard, as in adam, NaN gradients spoil the params. With
    a guard, they may cost the updates of their own step or window, and no others.
    """
    for long in sorted({min(steps, _SHORT), steps}):
        inputs, _ = _exact_run(problem, _SCENARIOS[0], long, seed=0)
        bad = problem.replace_by_nan(inputs[0])
        usual = _sizes(problem, inputs)
        # The first update may come late: from a window, or a rate that starts at zero.
        if np.any(np.sum(usual > 0, axis=0) > _SEVERAL):
            break
    after = _sizes(problem, [bad, *inputs[1:]])
    if not np.all(np.isfinite(after)):
        return
    for leaf, where in enumerate(problem.paths):
        moves = np.flatnonzero(usual[:, leaf])[1:]
        if len(moves) >= _SEVERAL and not np.any(after[moves[0] :, leaf]):
            message = "zero updates from then on"
            yield Violation("stalls", where, message, int(moves[0]) + 1, "after NaN gradients")


def _sizes(problem: RandomProblem, inputs: Sequence[Inputs]) -> Any:
    """Return the largest update of each leaf, by step."""
    run = Run(problem, inputs[0])
    steps = map(run.step, inputs)
    return np.asarray([[np.max(np.abs(u), initial=0.0) for u in step.updates] for step in steps])
