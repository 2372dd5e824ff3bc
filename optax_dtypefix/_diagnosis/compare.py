"""Compare the runs of a problem: what is not finite, off, or stalls."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from .._contract.dtypes import is_inexact
from .result import Violation
from .trial import Results, Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    _Scenario("after zero gradients", zeros=2),
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
    start = Run(problem, first)
    # A float scalar of the state may be a sum.
    long = steps if any(map(is_inexact, start.scalars().values())) else short
    incomparable = {
        "updates hold the rounding of the params": problem.half and start.rounds_params,
        "updates are random": problem.is_random(first),
        "float8": problem.coarse,
    }
    # The gradients of a given loss are what they are.
    for seed, scenario in enumerate(_SCENARIOS if problem.loss is None else _SCENARIOS[:1]):
        inputs, exact = _exact_run(problem, scenario, long if scenario.long else short, seed)
        run = Run(problem, inputs[0])
        stored = run.array_dtypes()
        user = run.steps(inputs)
        reasons = [reason for reason, holds in incomparable.items() if holds]
        broken = list(_not_finite(problem, user))
        if not broken and (reasons or exact is None):
            reason = [*reasons, "the exact run fails"][0]
            notes[f"{reason}: only checked for numbers that are not finite"] = None
        elif exact is not None and not broken:
            rounded = Run(problem, inputs[0], exact=True, stored=stored).steps(inputs)
            broken = [*_wrong_updates(problem, scenario.zeros, user, exact, rounded)]
            # A line search decides by differences of nearly equal losses.
            if problem.loss is None:
                broken += _wrong_statistics(run.scalar_dtypes(), user, exact, rounded)
        yield from (dataclasses.replace(one, gradients=scenario.name) for one in broken)
    yield from _find_stall_after_nan(problem, steps)


def _wrong_updates(
    problem: RandomProblem, zeros: int, user: Results, exact: Results, rounded: Results
) -> Iterator[Violation]:
    """Yield for each leaf the first update that is wrong."""
    tolerance = _IN_HALF if problem.half else _IN_FLOAT
    end = None
    if problem.loss is not None:
        tolerance = 1.0  # A step may be twice as long as another, and both are right.
        end = _converged(exact)
    every = zip(problem.paths, user.updates, exact.updates, rounded.updates)
    for where, got, wanted, explained in every:
        # Without gradients, the update is 0 or what rounding leaves of a difference.
        errors = _errors(got[:end], wanted[:end])[zeros:]
        rounding = np.maximum.accumulate(_errors(explained[:end], wanted[:end]))[zeros:]
        averaged = [np.mean(errors[max(0, i - _WINDOW) : i]) for i in range(1, len(errors) + 1)]
        # An error as large as the update is no rounding, unless storing it takes as much.
        most = np.maximum(np.minimum(1.0, _AS_ROUNDING * rounding), 2 * rounding)
        for step in zeros + np.flatnonzero(averaged > np.maximum(most, tolerance))[:1]:
            is_, should = (float(np.mean(np.abs(run[step]))) for run in (got, wanted))
            if is_ == 0:
                yield Violation("stalls", where, f"zero instead of {should:.2g}", int(step) + 1)
            else:
                error = averaged[step - zeros]
                message = f"off by {error:.0%}: size {is_:.3g} instead of {should:.3g}"
                yield Violation("update", where, message, int(step) + 1)


def _wrong_statistics(
    dtypes: Mapping[str, Any], user: Results, exact: Results, rounded: Results
) -> Iterator[Violation]:
    """Yield for each scalar of the state the first value that is wrong.

    The rounding of the right value to the dtype of the scalar is right, as 0 for 1e-8 in float16:
    a patch uses a hyperparameter as it was given, where the state holds its rounding.
    """
    shared = exact.scalars.keys() & rounded.scalars.keys()
    for name in [name for name in user.scalars if name in shared]:
        got, wanted, explained = (run.scalars[name] for run in (user, exact, rounded))
        with np.errstate(invalid="ignore", over="ignore"):
            stored = wanted.astype(dtypes.get(name, wanted.dtype)).astype(wanted.dtype)
            size = np.maximum(np.abs(wanted), 1e-30)
            rounding = np.minimum(_AS_ROUNDING * np.abs(explained - wanted) / size, 0.5)
            most = np.fmax.accumulate(np.fmax(rounding, _STATISTIC))
            right = (np.abs(got - wanted) / size <= most) | (got == stored)
        comparable = np.logical_and.accumulate(np.isfinite(wanted))
        for step in np.flatnonzero(comparable & ~right)[:1]:
            before = max(0, step - 2)
            stalled = got[step] == got[before] and wanted[step] != wanted[before]
            kind = "stalls" if stalled else "statistic"
            message = f"{got[step]:.6g} instead of {wanted[step]:.6g}"
            yield Violation(kind, name, message, int(step) + 1)


def _exact_run(
    problem: RandomProblem, scenario: _Scenario, steps: int, seed: int
) -> tuple[list[Inputs], Results | None]:
    """Run a problem exactly. Return the inputs of its steps, and no results if it fails."""
    rng = np.random.default_rng(seed)
    params = start = problem.start(rng)
    run: Run | None = None
    inputs: list[Inputs] = []
    results: list[Results] = []
    for step in range(steps):
        scale = 0.0 if step < scenario.zeros else scenario.scale
        inputs.append(problem.inputs(params, start, step, scale, rng))
        if len(results) < step:
            continue  # It has failed; the user's run goes on.
        with contextlib.suppress(Exception, SystemExit):
            run = run or Run(problem, inputs[0], exact=True)
            result = run.steps(inputs[-1:])
            if all(np.all(np.isfinite(update)) for update in result.updates):
                results.append(result)
                params = _moved(params, [update[0] for update in result.updates])
    return inputs, Results.join(results) if len(results) == steps else None


def _moved(params: list[Any], updates: list[Any]) -> list[Any]:
    if [np.shape(p) for p in params] != [np.shape(u) for u in updates]:
        return params  # ``lookahead`` has other params.
    # Some transformations give gradients, which go uphill: keep away from infinity.
    moved = [p + u for p, u in zip(params, updates)]
    return [p / np.maximum(1.0, np.abs(p) / 2.0) for p in moved]


def _converged(results: Results) -> int | None:
    """Return the step where updates become small: then a line search decides by rounding errors."""
    sizes = np.max(_sizes(results), axis=1)
    largest = int(np.argmax(sizes))
    small = largest + np.flatnonzero(sizes[largest:] < 0.5 * sizes[largest])
    return int(small[0]) if len(small) else None


def _sizes(results: Results) -> Any:
    """Return the largest update of each leaf, by step."""
    flat = (np.abs(update).reshape(len(update), -1) for update in results.updates)
    return np.stack([np.max(update, axis=1, initial=0.0) for update in flat], axis=1)


def _errors(got: Any, wanted: Any) -> Any:
    """Return the mean error of each step, as a fraction of the mean size that an update has."""
    count = max(1, np.size(wanted[:1]))
    errors, sizes = (
        np.sum(np.abs(update).reshape(len(wanted), -1), axis=1) / count
        for update in (got - wanted, wanted)
    )
    tiny = 2.0**-23  # Twice the smallest float16 above zero.
    # Next to a large update, a tiny one need not be exact.
    least = max(0.1 * np.max(sizes, initial=0.0), 1e-30)
    return np.where(errors <= tiny, 0.0, errors / np.maximum(sizes, least))


def _not_finite(problem: RandomProblem, user: Results) -> Iterator[Violation]:
    for where, updates in zip(problem.paths, user.updates):
        finite = np.isfinite(updates).reshape(len(updates), -1).all(axis=1)
        for step in np.flatnonzero(~finite)[:1]:
            message = "nan" if np.any(np.isnan(updates[step])) else "inf"
            yield Violation("not finite", where, message, int(step) + 1)


def _find_stall_after_nan(problem: RandomProblem, steps: int) -> Iterator[Violation]:
    """Check that updates go on after a step of NaN, unless they are NaN themselves.

    NaN updates are no violation: without a guard, as in adam, NaN gradients spoil the params. With
    a guard, they may cost the updates of their own step or window, and no others.
    """
    for long in sorted({min(steps, _SHORT), steps}):
        inputs, _ = _exact_run(problem, _SCENARIOS[0], long, seed=0)
        bad = problem.replace_by_nan(inputs[0])
        usual = _sizes(Run(problem, inputs[0]).steps(inputs))
        # The first update may come late: from a window, or a rate that starts at zero.
        if np.any(np.sum(usual > 0, axis=0) > _SEVERAL):
            break
    after = _sizes(Run(problem, bad).steps([bad, *inputs[1:]]))
    if not np.all(np.isfinite(after)):
        return
    for leaf, where in enumerate(problem.paths):
        moves = np.flatnonzero(usual[:, leaf])[1:]
        if len(moves) >= _SEVERAL and not np.any(after[moves[0] :, leaf]):
            message = "zero updates from then on"
            yield Violation("stalls", where, message, int(moves[0]) + 1, "after NaN gradients")
