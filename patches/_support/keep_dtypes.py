"""Make stock's transformations keep their dtypes, with one mechanism for many.

Stock's function builds the transformation, and stock's update runs. The wrapper casts the state
back to its dtypes, and updates to at most the width of gradients and params. Where a gradient is
wider or narrower than its param, stock's own promotion of the state stands: which dtype is right
there is the user's choice (https://github.com/google-deepmind/optax/issues/1098), made by
``every_transform``.
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
    is_inexact,
    is_real,
    leaves,
    strip_weak_type,
    tree_map,
)
from ..._contract.kinds import promote_initial_state
from ..._contract.promotion import in_the_present_mode, standard_promotion
from ..._contract.state import cast_back
from ..._contract.updates import Step, bound_of, kept_like, requested_dtypes, same_dtypes
from ..._contract.widths import compute_dtype
from ..._contract.x64 import without_x64
from ..._engine.patch import Stock
from .rebuild import Call, Promotes, call_of, link_of, rebuild
from .stock_dtypes import StockPromotion, promotes_half, start_as_stock


@dataclasses.dataclass(eq=False, repr=False)  # Cheaper to import than a whole one.
class KeepDtypes:
    """A replacement for a function that builds a transformation.

    Attributes:
      in_32_bits: whether stock itself computes in float64 in 64-bit mode, and so has to run in
        32-bit mode.
      no_integers: whether stock raises on integer leaves, and is given float32 instead.
      in_one_dtype: whether stock needs all leaves in one dtype, float32 or wider. Scalars of the
        state are then kept in float32, arrays in stock's dtypes.
      around_another: whether another transformation is inside, whose arguments are not known. The
        state kept for a param then tells how wide an update may be.
      any_gradients: whether the state is also cast back where gradients have other dtypes than
        their params. Stock raises there, so all inputs are given to stock in one dtype.
    """

    in_32_bits: bool = False
    no_integers: bool = False
    in_one_dtype: bool = False
    around_another: bool = False
    any_gradients: bool = False

    def __call__(self, stock: Stock, *args: Any, **kwargs: Any) -> Any:
        """Build stock's transformation, made to keep its dtypes."""
        promotes = any(map(promotes_half, (*args, *kwargs.values())))
        tx, call = stock(*args, **kwargs), call_of(stock, args, kwargs)
        requested, promoted = (
            requested_dtypes(stock, args, kwargs),
            StockPromotion(stock, args, kwargs),
        )
        return self.wrap(tx, call, requested, promotes=promotes, promoted=promoted)

    def wrap(
        self,
        tx: Any,
        call: Call,
        requested: tuple[Any, ...] = (),
        *,
        promotes: bool = False,
        promoted: StockPromotion | None = None,
    ) -> Any:
        """Return the same transformation with an ``init`` and an ``update`` that keep dtypes."""

        def init_fn(params: PyTree) -> PyTree:
            state = promote_initial_state(step, self._start(tx, params), params)
            if promotes or self.in_one_dtype:
                state = start_as_stock(tx, state, params)
            return strip_weak_type(state)

        def step(
            updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
        ) -> tuple[PyTree, PyTree, PyTree]:
            """Run stock. Return the updates, the state, and what has the dtypes of that state."""
            # An integer leaf that is given as a float may have a float for its gradient, too.
            given = (updates, state, params)
            inputs = integers_to_float32(*given) if self.no_integers else given
            same = same_dtypes(inputs[0], self._like_params(inputs[2], state, updates))
            keep = same or self.any_gradients
            if not keep:
                inputs = given
            elif self._needs_one_dtype(params) or not same:
                inputs = in_one_dtype(*given)
            extra_args = self._extra_args(params, extra_args)
            update = functools.partial(run, **extra_args)
            new_updates, new_state, *_ = self._in_its_mode(update, *inputs)
            if promoted and not same and self.in_one_dtype:
                # Else stock itself has promoted the state.
                return new_updates, new_state, promoted(*given, extra_args)
            return new_updates, new_state, state if keep else None

        def update_fn(
            updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
        ) -> Step:
            new_updates, new_state, held = step(updates, state, params, **extra_args)
            bound = self._bound(new_updates, updates, params, state, requested)
            new_state = new_state if held is None else cast_back(new_state, held)
            return Step(new_updates, new_state, bound, requested)

        run = link_of(tx)
        # In 32-bit mode, and in one dtype: as stock computes up to 0.2.3.
        everywhere = promotes or (self.in_32_bits and self.in_one_dtype)
        where: Promotes = "everywhere" if everywhere else "nowhere"
        return rebuild(tx, call, update_fn, init_fn, promotes=where)

    def _start(self, tx: Any, params: PyTree) -> PyTree:
        if self.no_integers:  # As each step is given them.
            _, _, params = integers_to_float32((), (), params)
        return self._with_wide_scalars(tx, self._in_its_mode(tx.init, params), params)

    def _extra_args(self, params: PyTree, extra_args: dict[str, Any]) -> dict[str, Any]:
        """Return the extra arguments for stock; ``params`` are as the user gave them."""
        del params
        return {
            name: in_the_present_mode(value) if callable(value) else value
            for name, value in extra_args.items()
        }

    def _like_params(self, params: PyTree, state: PyTree, grads: PyTree) -> PyTree:
        """Return the params. Without params, what the state keeps for them."""
        return params if params is not None else next(iter(kept_like(state, grads)), [])

    def _needs_one_dtype(self, params: PyTree) -> bool:
        del params
        return self.in_one_dtype

    def _bound(
        self,
        updates: PyTree,
        grads: PyTree,
        params: PyTree,
        state: PyTree,
        requested: tuple[Any, ...],
    ) -> list[Any] | None:
        # Without params, the state says how wide they are.
        kept = state if params is None or self.around_another else None
        return bound_of(updates, grads, params, kept, requested)

    def _with_wide_scalars(self, tx: Any, state: PyTree, params: PyTree) -> PyTree:
        if not self.in_one_dtype:
            return state
        _, _, wide_params = in_one_dtype((), (), params)
        if same_dtypes(wide_params, params):
            return state
        wide_state = self._in_its_mode(tx.init, wide_params)
        return tree_map(
            lambda wide, leaf: wide if _is_scalar(wide) or not is_inexact(leaf) else leaf,
            wide_state,
            state,
        )

    def _in_its_mode(self, function: Callable[..., Any], *args: PyTree) -> Any:
        with standard_promotion():
            return without_x64(function, *args) if self.in_32_bits else function(*args)


def in_one_dtype(grads: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """Cast all real leaves to the widest of their dtypes, float32 or wider; keep counters.

    Trees stay trees: which fields of a state are like the params, to be listed, is not known.
    """
    dtype = compute_dtype([leaf for leaf in leaves((grads, params)) if is_real(leaf)])

    def number(leaf: Any) -> Any:
        return cast(leaf, dtype) if is_real(leaf) else leaf

    grads, state, params = tree_map(number, integers_to_float32(grads, state, params))
    return grads, state, params


def integers_to_float32(
    grads: PyTree, state: PyTree, params: PyTree
) -> tuple[PyTree, PyTree, PyTree]:
    """Cast integers to float32, except counters and random keys in the state."""

    def number(leaf: Any) -> Any:
        return cast(leaf, jnp.float32) if jnp.issubdtype(dtype_of(leaf), jnp.integer) else leaf

    def statistic(leaf: Any) -> Any:
        counts = jnp.ndim(leaf) == 0 or jnp.issubdtype(dtype_of(leaf), jnp.unsignedinteger)
        return leaf if counts else number(leaf)

    return tree_map(number, grads), tree_map(statistic, state), tree_map(number, params)


def _is_scalar(leaf: Any) -> bool:
    return is_inexact(leaf) and not jnp.shape(leaf)
