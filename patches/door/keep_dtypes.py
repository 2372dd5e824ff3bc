"""Make stock's transformations keep their dtypes, with one mechanism for many.

Stock's function builds the transformation, and stock's update runs. The state is cast back to its
dtypes, and updates to at most the width of gradients and params. So it is where a gradient is wider
than its param, which makes stock's state wider in the first step
(https://github.com/google-deepmind/optax/issues/1098).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable

import jax.numpy as jnp

from ..._contract.dtypes import (
    PyTree,
    cast,
    dtype_of,
    dtypes_in,
    is_inexact,
    is_real,
    leaves,
    tree_map,
)
from ..._contract.kinds import promote_initial_state
from ..._contract.promotion import standard_promotion
from ..._contract.updates import exceeded_limits, same_dtypes, subtrees_like
from ..._contract.widths import compute_dtype
from ..._contract.x64 import without_x64
from ..._tally import Tally
from .layer import Layer
from .rebuild import link_of

Trees = tuple[PyTree, PyTree, PyTree]
"""Gradients, state and params."""


@dataclasses.dataclass(eq=False, repr=False)  # Cheaper to import than a whole one.
class KeepDtypes:
    """Let a transformation of stock keep its dtypes.

    Attributes:
      convert: what stock is given in place of the user's leaves, where it raises on them or mixes
        them: one of the functions below.
      in_32_bits: whether stock itself computes in float64 in 64-bit mode, and so has to run in
        32-bit mode.
      around_another: whether another transformation is inside, whose arguments are not known. The
        state kept for a param then tells how wide an update may be.
      any_gradients: whether the state is also cast back where gradients have other dtypes than
        their params. Stock raises there, so all inputs are given to stock in one dtype.
      may_promote: whether extra arguments may make updates of half precision wide.
      also_in_float32: whether stock is wrong in float32 too.
    """

    convert: Callable[[PyTree, PyTree, PyTree], Trees] | None = None
    in_32_bits: bool = False
    around_another: bool = False
    any_gradients: bool = False
    may_promote: bool = False
    also_in_float32: bool = False

    def add_to(self, layer: Layer, tally: Tally) -> None:
        """Make the transformation of a layer keep its dtypes."""
        layer.keep, layer.tally = self, tally

    @property
    def has_one_dtype(self) -> bool:
        """Whether stock needs all leaves in one dtype, float32 or wider.

        Scalars of the state are then kept in float32, arrays in stock's dtypes.
        """
        return self.convert is cast_to_one_dtype

    @property
    def promotes(self) -> bool:
        """Whether updates are wide: in one dtype, stock computes them so up to 0.2.3."""
        return self.may_promote or (self.in_32_bits and self.has_one_dtype)

    def start(self, tx: Any, params: PyTree) -> PyTree:
        """Return a new state of stock, in the kinds of numbers that it will hold."""
        run = functools.partial(self.run, functools.partial(link_of(tx)))
        return promote_initial_state(run, self._start(tx, params), params)

    def _start(self, tx: Any, params: PyTree) -> PyTree:
        if self.convert:  # As each step is given them.
            _, _, params = cast_integers_to_float32((), (), params)
        state = self._run_in_its_mode(tx.init, params)
        if not self.has_one_dtype:
            return state
        _, _, wide_params = cast_to_one_dtype((), (), params)
        if same_dtypes(wide_params, params):
            return state
        wide_state = self._run_in_its_mode(tx.init, wide_params)
        return tree_map(
            lambda wide, leaf: wide if _is_scalar(wide) or not is_inexact(leaf) else leaf,
            wide_state,
            state,
        )

    def run(
        self, update: Callable[..., Any], grads: PyTree, state: PyTree, params: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Run stock's update. Return what it returns."""
        given = (grads, state, params)
        # An integer leaf that is given as a float may have a float for its gradient, too.
        inputs = cast_integers_to_float32(*given) if self.convert else given
        if same_dtypes(inputs[0], self.find_like_params(inputs[2], state, grads)):
            inputs = self.convert(*inputs) if self.convert else inputs
        elif self.any_gradients:
            inputs = cast_to_one_dtype(*given)
        new_updates, new_state, *_ = self._run_in_its_mode(update, *inputs)
        return new_updates, new_state

    def find_like_params(self, params: PyTree, state: PyTree, grads: PyTree) -> PyTree:
        """Return the params. Without params, what the state keeps for them."""
        return params if params is not None else next(iter(subtrees_like(state, grads)), [])

    def limits(
        self,
        updates: PyTree,
        grads: PyTree,
        params: PyTree,
        state: PyTree,
        requested: tuple[Any, ...],
    ) -> list[Any] | None:
        """List the widest dtypes that the updates may have; None if they are within them."""
        # Without params, the state says how wide they are.
        kept = state if params is None or self.around_another else None
        return exceeded_limits(updates, grads, params, kept, requested)

    def _run_in_its_mode(self, function: Callable[..., Any], *args: PyTree) -> Any:
        with standard_promotion():
            return without_x64(function, *args) if self.in_32_bits else function(*args)


def cast_to_one_dtype(grads: PyTree, state: PyTree, params: PyTree) -> Trees:
    """Cast all real leaves to the widest of their dtypes, float32 or wider; keep counters.

    Trees stay trees: which fields of a state are like the params, to be listed, is not known.
    """
    dtype = compute_dtype([leaf for leaf in leaves((grads, params)) if is_real(leaf)])

    def number(leaf: Any) -> Any:
        return cast(leaf, dtype) if is_real(leaf) else leaf

    grads, state, params = tree_map(number, cast_integers_to_float32(grads, state, params))
    return grads, state, params


def cast_mixed_to_one_dtype(grads: PyTree, state: PyTree, params: PyTree) -> Trees:
    """Do as :func:`cast_to_one_dtype` if params have several dtypes; else cast integers alone."""
    convert = cast_to_one_dtype if len(dtypes_in(params)) > 1 else cast_integers_to_float32
    return convert(grads, state, params)


def cast_integers_to_float32(grads: PyTree, state: PyTree, params: PyTree) -> Trees:
    """Cast integers to float32, except counters and random keys in the state."""

    def number(leaf: Any) -> Any:
        return cast(leaf, jnp.float32) if jnp.issubdtype(dtype_of(leaf), jnp.integer) else leaf

    def statistic(leaf: Any) -> Any:
        counts = jnp.ndim(leaf) == 0 or jnp.issubdtype(dtype_of(leaf), jnp.unsignedinteger)
        return leaf if counts else number(leaf)

    return tree_map(number, grads), tree_map(statistic, state), tree_map(number, params)


def _is_scalar(leaf: Any) -> bool:
    return is_inexact(leaf) and not jnp.shape(leaf)
