"""Train on steady gradients for long, as a program does: find updates and params that stall.

Two states run side by side, one in the user's dtypes and one in float32. Both are given the same
gradients and params in each step. The params are those of the user's run, moved by
``optax.apply_updates``. So a difference of the updates arises inside the transformation, and one of
the params and the sum of the updates arises in ``apply_updates``.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import PyTree, has_16_bits, is_inexact, is_number, leaves, tree_map
from .._errors import summarize
from .result import Violation
from .trial import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .random_problem import Inputs, RandomProblem

STEPS = 2000
"""Steps of the run. A second moment in bfloat16 stalls before, at half of its value."""

LEAST = 64
"""Size to which large dimensions are shrunk: noise averages out over many params."""

_BLOCK = 100
"""Steps that are compiled as one loop. Updates are averaged over the last of them."""

_NOISE = 0.05
"""Largest noise of a gradient, as a fraction. No two steps have the same data, as in a program."""

_MOST = 2**17
"""Numbers in gradients and params up to which the run takes a few seconds."""

_OFF = 0.1
"""An update may be off by this fraction after ``STEPS``."""

_LOST = 0.25
"""So much of the way may params lose, beyond the noise of rounding."""

_SIGMAS = 4.0
"""Noise of rounding that is no violation, in standard deviations."""

_UNITS = 4.0
"""Distances of two params that all updates of a step must have together, or no param may move.

With the user's larger shapes they have more.
"""

_ENDED = 1e-4
"""Updates below this fraction of the largest are the end of a schedule: the last may be no 0."""

_TINY = 2.0**-23
"""Twice the smallest float16 above zero."""

_LARGEST = 2.0**15
"""Updates are compared up to this size, which float16 has: an estimate may grow without end."""

_GRADIENTS = "after steady gradients"


class _Sums(NamedTuple):
    """Sums over the steps of a block: a list with an array for each leaf.

    Attributes:
      got: the user's updates.
      wanted: those of float32.
      moved: how far ``apply_updates`` moved the params, while their sizes were below 2.
      asked: the sum of the user's updates meanwhile.
    """

    got: list[Any]
    wanted: list[Any]
    moved: list[Any]
    asked: list[Any]


def find_stalls(
    problem: RandomProblem, apply_updates: Callable[..., PyTree], notes: dict[str, None]
) -> Iterator[Violation]:
    """Run a problem with steady gradients, and yield which updates and params are wrong.

    Args:
      problem: to be run. Without half precision nothing stalls, and gradients of a given loss are
        not steady: then nothing is run.
      apply_updates: that of optax.
      notes: gets why the problem is not run.
    """
    first = problem.steady(np.random.default_rng(0))
    if not problem.half or problem.coarse or problem.loss is not None:
        return
    if sum(map(np.size, first.arrays)) > _MOST:
        notes["shapes too large for a run with steady gradients"] = None
        return
    try:
        params, blocks = _run(problem, first, apply_updates)
    except Exception as error:  # Its state may change, so that no loop takes it.
        notes[f"no run with steady gradients: {summarize(error)}"] = None
        return
    if not (problem.is_random(first) or Run(problem, first).rounds_params):
        for i, where in enumerate(problem.paths):
            count = _blocks_with_updates(blocks, i)
            block, steps = blocks[count - 1], count * _BLOCK
            if steps < STEPS:
                notes[f"no updates after step {steps}: compared up to there"] = None
            yield from _wrong_update(where, block.got[i] / _BLOCK, block.wanted[i] / _BLOCK, steps)
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    rounded = [
        (
            f"params{jax.tree_util.keystr(path)}",
            *(sum(column) for column in zip(*((b.moved[i], b.asked[i]) for b in blocks))),
            float(jnp.finfo(param.dtype).eps),
        )
        for i, (path, param) in enumerate(flat if blocks[-1].moved else ())
        if has_16_bits(param)
    ]
    units = sum(np.sum(np.abs(asked)) / unit for _, _, asked, unit in rounded) / STEPS
    if units > _UNITS or not problem.shrunk:
        for one in rounded:
            yield from _wrong_param(*one)


def _blocks_with_updates(blocks: list[_Sums], leaf: int) -> int:
    """Count the blocks up to the last one with updates: a schedule may end at 0 before."""
    sizes = [np.abs(block.wanted[leaf]) + np.abs(block.got[leaf]) for block in blocks]
    totals = [float(np.sum(size)) for size in sizes]
    ended = _ENDED * max(totals)
    return next((n for n in range(len(totals), 0, -1) if not totals[n - 1] <= ended), len(totals))


def _wrong_update(where: str, got: Any, wanted: Any, steps: int) -> Iterator[Violation]:
    if not np.all(np.abs(wanted) < _LARGEST):
        return
    if not np.all(np.isfinite(got)):
        message = "nan" if np.any(np.isnan(got)) else "inf"
        yield Violation("not finite", where, message, steps, _GRADIENTS)
        return
    error, size = (float(np.sum(np.abs(update))) for update in (got - wanted, wanted))
    if error <= max(_OFF * size, _TINY * np.size(wanted)):
        return
    times = float(np.sum(got * wanted) / np.sum(wanted * wanted))
    if times == 0.0:
        yield Violation("stalls", where, f"zero instead of {size:.2g}", steps, _GRADIENTS)
    elif times > 1.0 + _OFF / 2:
        message = f"updates {times:.2f} times too large"
        yield Violation("update", where, message, steps, _GRADIENTS)
    elif times < 1.0 - _OFF / 2:
        message = f"updates too small, {times:.2f} of their size"
        yield Violation("update", where, message, steps, _GRADIENTS)
    else:
        message = f"updates off by {error / size:.0%}"
        yield Violation("update", where, message, steps, _GRADIENTS)


def _wrong_param(where: str, moved: Any, asked: Any, unit: float) -> Iterator[Violation]:
    """Compare how far params of sizes up to 2 moved with the sum of their updates.

    Args:
      where: key path.
      moved: the way of each number.
      asked: its updates.
      unit: the distance of two params. Rounding up and down has a variance of this times the way.
    """
    way = np.abs(asked)
    missing = way - moved * np.sign(asked)
    if not (np.all(np.isfinite(missing)) and np.any(way)):
        return
    # Some numbers may stall and others not; and noise averages out over many.
    single = np.sum(np.maximum(0.0, missing - _SIGMAS * np.sqrt(unit * way)))
    together = np.sum(missing) - _SIGMAS * np.sqrt(unit * np.sum(way))
    if max(single, together) > _LOST * np.sum(way):
        share = 1.0 - np.sum(np.maximum(0.0, missing)) / np.sum(way)
        only = f"moves params only {share:.2f} of the way"
        message = f"apply_updates {only if share > 0.01 else 'does not move params'}"
        yield Violation("params", where, message, STEPS, _GRADIENTS)


def _run(
    problem: RandomProblem, first: Inputs, apply_updates: Callable[..., PyTree]
) -> tuple[PyTree, list[_Sums]]:
    """Return the first params, and the sums of each block of steps."""
    params, mean, extra_args = problem.arguments(first, exact=False)
    # Without its ``jit``, which returns copies: ``apply_updates`` knows the updates themselves.
    own_update = inspect.unwrap(problem.update)

    def update(wide: bool, grads: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
        given = (grads, state, params, extra_args)
        result: tuple[PyTree, PyTree] = own_update(*(_wide(given) if wide else given))
        return result

    # The dtypes that the states have from the second step on.
    start = params, problem.init(params), _wide(problem.init(_wide(params)))
    updates_like, user_like = jax.eval_shape(
        functools.partial(update, False), mean, start[1], params
    )
    _, wide_like = jax.eval_shape(functools.partial(update, True), mean, start[2], params)
    wide_like = jax.eval_shape(_wide, wide_like)
    is_applied = _shapes(updates_like) == _shapes(params)  # Not those of ``lookahead``.
    zeros = [jnp.zeros(leaf.shape, jnp.float32) for leaf in leaves(updates_like)]
    no_sums = _Sums(zeros, zeros, *([zeros, zeros] if is_applied else [[], []]))

    most = max(leaf.size for leaf in leaves(mean))
    noise = np.random.default_rng(0).uniform(1.0 - _NOISE, 1.0 + _NOISE, STEPS + most)
    table = jnp.asarray(noise, jnp.float32)

    def step(carry: Any, count: Any) -> tuple[Any, None]:
        (params, user, wide), sums = carry
        grads = _noisy(mean, table, count)
        updates, user = update(False, grads, user, params)
        wanted, wide = update(True, grads, wide, params)
        moved: list[Any] = []
        asked: list[Any] = []
        if is_applied:
            after = apply_updates(params, updates)
            moved, asked = _moves(params, updates, after)
            params = _like(tree_map(_bounded, after), params)
        new = _Sums(*map(_float32, (leaves(updates), leaves(wanted), moved, asked)))
        states = params, _like(user, user_like), _like(wide, wide_like)
        return (states, tree_map(jnp.add, sums, new)), None

    @jax.jit
    def block(states: Any, counts: Any) -> Any:
        return jax.lax.scan(step, (states, no_sums), counts)[0]

    states = params, _like(start[1], user_like), _like(start[2], wide_like)
    blocks = []
    for counts in np.arange(STEPS).reshape(-1, _BLOCK):
        states, sums = block(states, counts)
        blocks.append(tree_map(lambda leaf: np.asarray(leaf, np.float64), sums))
    return params, blocks


def _moves(params: PyTree, updates: PyTree, after: PyTree) -> tuple[list[Any], list[Any]]:
    """Return how far each param moves, and how far it should; 0 where its size is 2 or more."""
    befores, asked = _float32(leaves(params)), _float32(leaves(updates))
    moves = [_stored(leaf) - before for leaf, before in zip(leaves(after), befores)]
    inside = [jnp.abs(before) < 2.0 for before in befores]
    moved, asked = (
        [jnp.where(i, x, 0.0) for i, x in zip(inside, column)] for column in (moves, asked)
    )
    return moved, asked


def _stored(leaf: Any) -> Any:
    """Return a param in float32 as it is stored: XLA leaves out a cast there and back."""
    wide = jnp.real(leaf).astype(jnp.float32)
    if not has_16_bits(leaf):
        return wide
    form = jnp.finfo(leaf.dtype)
    return jax.lax.reduce_precision(wide, form.nexp, form.nmant)


def _noisy(mean: PyTree, table: Any, step: Any) -> PyTree:
    """Return the gradients of a step. The window on the table moves: random keys compile longer."""

    def noisy(leaf: Any) -> Any:
        if not is_inexact(leaf):
            return leaf
        noise = jax.lax.dynamic_slice(table, (step,), (leaf.size,)).reshape(leaf.shape)
        return (leaf * noise).astype(leaf.dtype)

    return tree_map(noisy, mean)


def _bounded(param: Any) -> Any:
    """Keep away from infinity: the gradients never end."""
    return jnp.clip(param, -2.0, 2.0) if jnp.issubdtype(param.dtype, jnp.floating) else param


def _wide(tree: PyTree) -> PyTree:
    return tree_map(lambda x: jnp.asarray(x, jnp.float32) if has_16_bits(x) else x, tree)


def _float32(flat: list[Any]) -> list[Any]:
    return [jnp.real(leaf).astype(jnp.float32) for leaf in flat]


def _like(tree: PyTree, like: PyTree) -> PyTree:
    return tree_map(lambda x, to: jnp.asarray(x, to.dtype) if is_number(x) else x, tree, like)


def _shapes(tree: PyTree) -> Any:
    return jax.tree_util.tree_structure(tree), [leaf.shape for leaf in leaves(tree)]
