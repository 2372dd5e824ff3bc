"""Train on steady gradients for long, as a program does, in the user's dtypes and in float32.

Two states run side by side, one in the user's dtypes and one in float32. Both are given the same
gradients and params in each step. The params are those of the user's run, moved by
``optax.apply_updates``. So a difference of the updates arises inside the transformation, and one of
the params and the sum of the updates arises in ``apply_updates``.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import PyTree, has_16_bits, is_inexact, is_number, leaves, tree_map
from .._contract.master_weights import requested_by
from .jaxpr import equations

STEPS = 2000
"""Steps of the run. A second moment in bfloat16 stalls before, at half of its value."""

BLOCK = 100
"""Steps that are compiled as one loop."""

_NOISE = 0.05
"""Largest noise of a gradient, as a fraction. No two steps have the same data, as in a program."""

_MOST = 2**17
"""Numbers in gradients and params up to which the run takes a few seconds."""

_SIZES = (64, 128, 256)
"""The sizes to try for large dimensions, in this order. Adafactor factors from 128 on."""

_RANDOM = {"threefry2x32", "random_bits", "random_seed", "random_wrap", "rng_bit_generator"}
"""Primitives that draw random numbers."""


class Sums(NamedTuple):
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


class Problem:
    """A transformation with params and gradients, as on a slope without end.

    Numbers have sizes between 0.5 and 1.5; a loss is 1.

    Args:
      tx: the transformation.
      params: tree of ``jax.ShapeDtypeStruct``. Large dimensions are shrunk.
      grads: tree of ``jax.ShapeDtypeStruct``.
      extra_args: of ``update``: functions, ``grad``, and losses.
    """

    def __init__(self, tx: Any, params: PyTree, grads: PyTree, extra_args: dict[str, Any]) -> None:
        random = np.random.default_rng(0)

        def draw(leaf: Any) -> Any:
            numbers = random.uniform(0.5, 1.5, leaf.shape) * random.choice((-1.0, 1.0), leaf.shape)
            if not is_inexact(leaf):  # None becomes zero.
                numbers = np.sign(numbers) * np.ceil(np.abs(numbers))
            return jnp.asarray(numbers.astype(leaf.dtype))

        self._tx = tx
        shapes = _shrunk(tx.init, params, grads)
        if sum(leaf.size for leaf in leaves(shapes)) > _MOST:
            raise ValueError("the shapes are too large")
        self.params, self.grads = tree_map(draw, shapes)
        losses = {name: arg for name, arg in extra_args.items() if hasattr(arg, "dtype")}
        self._extra_args = {
            **extra_args,
            **{name: jnp.ones((), loss.dtype) for name, loss in losses.items()},
            **({"grad": self.grads} if "grad" in extra_args else {}),
        }

    def _update(self, wide: bool, grads: PyTree, state: PyTree, params: PyTree) -> Any:
        """Return the updates and the next state; in float32 if ``wide``."""
        given = (grads, state, params, self._extra_args)
        grads, state, params, extra_args = _wide(given) if wide else given
        return self._tx.update(grads, state, params, **extra_args)

    def why_incomparable(self) -> str:
        """Say why float32 gives other updates, if it does."""

        def first() -> Any:
            state = self._tx.init(self.params)
            return leaves(self._update(False, self.grads, state, self.params)[0])

        if requested_by(self._tx.init(self.params)):
            return "updates hold the rounding of the params"
        names = {equation.primitive.name for equation in equations(jax.make_jaxpr(first)().jaxpr)}
        return "updates are random" if names & _RANDOM else ""

    def run(self) -> list[Sums]:
        """Return the sums of each block of steps."""
        import optax

        params, mean = self.params, self.grads
        # The dtypes that the states have from the second step on.
        start = params, self._tx.init(params), _wide(self._tx.init(_wide(params)))
        updates_like, user_like = jax.eval_shape(
            functools.partial(self._update, False), mean, start[1], params
        )
        _, wide_like = jax.eval_shape(functools.partial(self._update, True), mean, start[2], params)
        wide_like = jax.eval_shape(_wide, wide_like)
        is_applied = _shapes(updates_like) == _shapes(params)  # Not those of ``lookahead``.
        zeros = [jnp.zeros(leaf.shape, jnp.float32) for leaf in leaves(updates_like)]
        no_sums = Sums(zeros, zeros, *([zeros, zeros] if is_applied else [[], []]))

        most = max(leaf.size for leaf in leaves(mean))
        noise = np.random.default_rng(0).uniform(1.0 - _NOISE, 1.0 + _NOISE, STEPS + most)
        table = jnp.asarray(noise, jnp.float32)

        def step(carry: Any, count: Any) -> tuple[Any, None]:
            (params, user, wide), sums = carry
            grads = _noisy(mean, table, count)
            updates, user = self._update(False, grads, user, params)
            wanted, wide = self._update(True, grads, wide, params)
            moved: list[Any] = []
            asked: list[Any] = []
            if is_applied:
                after = optax.apply_updates(params, updates)
                moved, asked = _moves(params, updates, after)
                params = _like(tree_map(_bounded, after), params)
            every = (leaves(updates), leaves(wanted), moved, asked)
            new = Sums(*(list(map(_stored, flat)) for flat in every))
            states = params, _like(user, user_like), _like(wide, wide_like)
            return (states, tree_map(jnp.add, sums, new)), None

        @jax.jit
        def block(states: Any, counts: Any) -> Any:
            return jax.lax.scan(step, (states, no_sums), counts)[0]

        states = params, _like(start[1], user_like), _like(start[2], wide_like)
        blocks = []
        for counts in np.arange(STEPS).reshape(-1, BLOCK):
            states, sums = block(states, counts)
            blocks.append(tree_map(lambda leaf: np.asarray(leaf, np.float64), sums))
        return blocks


def _shrunk(init: Any, params: PyTree, grads: PyTree) -> tuple[PyTree, PyTree]:
    """Shrink large dimensions: noise of rounding averages out over few numbers too.

    Equal dimensions stay equal, and a longer one stays longer. The state must have the same
    structure, ranks and dimensions of size 1: then adafactor factors what it factored.
    """
    every = leaves((params, grads))
    for size in _SIZES:
        large = sorted({n for leaf in every for n in leaf.shape if n >= size})
        smaller = {n: min(n, size + i) for i, n in enumerate(large)}
        shrink = functools.partial(_resized, smaller)
        small = tree_map(shrink, params), tree_map(shrink, grads)
        with contextlib.suppress(Exception):  # It may be too small for ``init``, as for muon.
            if _outline(init, small[0]) == _outline(init, params):
                return small
    return params, grads


def _resized(sizes: dict[int, int], leaf: Any) -> Any:
    return jax.ShapeDtypeStruct([sizes.get(n, n) for n in leaf.shape], leaf.dtype)


def _outline(init: Any, params: PyTree) -> Any:
    state = jax.eval_shape(init, params)
    ones = [[n == 1 for n in leaf.shape] for leaf in leaves(state)]
    return jax.tree_util.tree_structure(state), ones


def _moves(params: PyTree, updates: PyTree, after: PyTree) -> tuple[list[Any], list[Any]]:
    """Return how far each param moves, and how far it should; 0 where its size is 2 or more."""
    befores, asked = (list(map(_stored, leaves(tree))) for tree in (params, updates))
    moves = [_stored(leaf) - before for leaf, before in zip(leaves(after), befores)]
    inside = [jnp.abs(before) < 2.0 for before in befores]
    moved, asked = (
        [jnp.where(i, x, 0.0) for i, x in zip(inside, column)] for column in (moves, asked)
    )
    return moved, asked


def _stored(leaf: Any) -> Any:
    """Return a leaf in float32 as it is stored: XLA leaves out a cast there and back."""
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
    """Keep away from infinity: the gradients never end. NaN would reach both states."""
    if not jnp.issubdtype(param.dtype, jnp.floating):
        return param
    return jnp.clip(jnp.nan_to_num(param), -2.0, 2.0)


def _wide(tree: PyTree) -> PyTree:
    def widen(leaf: Any) -> Any:
        return jnp.asarray(leaf, jnp.float32) if is_number(leaf) and has_16_bits(leaf) else leaf

    return tree_map(widen, tree)


def _like(tree: PyTree, like: PyTree) -> PyTree:
    return tree_map(lambda x, to: jnp.asarray(x, to.dtype) if is_number(x) else x, tree, like)


def _shapes(tree: PyTree) -> Any:
    return jax.tree_util.tree_structure(tree), [leaf.shape for leaf in leaves(tree)]
