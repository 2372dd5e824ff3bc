"""One mechanism for many transformations: stock, held to the dtypes that it is given.

Stock's function builds the transformation, and stock's update runs. Around it the state keeps its
dtypes, and updates get those of the gradients. Where a gradient is wider or narrower than its
param, stock's own promotion stands: which dtype is wanted there is the user's to say
(https://github.com/google-deepmind/optax/issues/1098), with the opt-in patch ``every_transform``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp

from optax_dtypefix._dtypes import (
    PyTree,
    cast,
    dtype_of,
    have_one_structure,
    hold,
    is_inexact,
    leaves,
    strengthen,
    tree_map,
    without_x64,
    working_dtype,
)
from optax_dtypefix.patches._calls import called_like

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Steady:
    """A replacement for a function that builds a transformation.

    Attributes:
      in_32_bits: whether stock computes in float64 by itself in 64-bit mode, and has to be kept
        from it.
      no_integers: whether stock raises on integer leaves, and has to be given float32 instead.
      in_one_dtype: whether stock needs all leaves in one dtype, float32 or wider. Scalars of its
        state are kept in float32 then, arrays as stock has them.
      any_gradients: whether it is held also where gradients have not the dtypes of their params,
        and given all in one dtype there, because stock raises.
    """

    in_32_bits: bool = False
    no_integers: bool = False
    in_one_dtype: bool = False
    any_gradients: bool = False

    def __call__(self, stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Builds stock's transformation, held."""
        return self.hold(stock(*args, **kwargs))

    def hold(self, tx: Any) -> Any:
        """The same transformation with an ``init`` and an ``update`` that keep dtypes."""

        @functools.wraps(tx.init)
        def init_fn(params: PyTree) -> PyTree:
            return strengthen(self._start(tx, params))

        @functools.wraps(tx.update)
        def update_fn(
            updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
        ) -> tuple[PyTree, PyTree]:
            def run(*given: PyTree) -> tuple[PyTree, PyTree]:
                update = functools.partial(tx.update, **self._extra_args(params, extra_args))
                result: tuple[PyTree, PyTree] = self._in_its_mode(update, *given)
                return result

            # An integer leaf that is given as a float may have a float for its gradient, too.
            given = (updates, state, params)
            numbers = _without_integers(*given) if self.no_integers else given
            same = have_one_dtype(numbers[0], numbers[2])
            if not (same or self.any_gradients):
                new_updates, new_state = run(*given)
                # Where init is not stock's, what stock makes of it would not be stock's either.
                own_init = self.in_32_bits or self.in_one_dtype
                new_updates = _hold_where_same(new_updates, updates, params)
                return new_updates, hold(new_state, state) if own_init else new_state
            if self._needs_one_dtype(params) or not same:
                numbers = in_one_dtype(*given)
            new_updates, new_state = run(*numbers)
            return self._hold_updates(new_updates, updates), hold(new_state, state)

        return tx._replace(init=init_fn, update=called_like(tx.update, update_fn))

    def _start(self, tx: Any, params: PyTree) -> PyTree:
        return self._with_wide_scalars(tx, self._in_its_mode(tx.init, params), params)

    def _extra_args(self, params: PyTree, extra_args: dict[str, Any]) -> dict[str, Any]:
        """Those for stock; ``params`` are as the user gave them."""
        del params
        return extra_args

    def _needs_one_dtype(self, params: PyTree) -> bool:
        del params
        return self.in_one_dtype

    def _hold_updates(self, updates: PyTree, grads: PyTree) -> PyTree:
        return hold(updates, grads)

    def _with_wide_scalars(self, tx: Any, state: PyTree, params: PyTree) -> PyTree:
        if not self.in_one_dtype:
            return state
        _, _, wide_params = in_one_dtype((), (), params)
        if have_one_dtype(wide_params, params):
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


@contextlib.contextmanager
def standard_promotion() -> Iterator[None]:
    """Stock's own arithmetic relies on it; a strict mode is meant for the user's.

    ``1 - decay**count`` raises in strict mode: a float and an int32.
    """
    if getattr(jax.config, "jax_numpy_dtype_promotion", "") == "standard":
        yield  # Most often, and faster.
    else:
        with jax.numpy_dtype_promotion("standard"):
            yield


def have_one_dtype(grads: PyTree, params: PyTree) -> bool:
    """Whether each gradient has the dtype of its param; also if there are no params to compare."""
    pairs = zip(leaves(grads), leaves(params))
    return all(dtype_of(grad) == dtype_of(param) for grad, param in pairs)


def _hold_where_same(new: PyTree, grads: PyTree, params: PyTree) -> PyTree:
    """The updates, those with the dtype of their gradient whose param has that dtype, too."""
    if not have_one_structure(new, grads, params):
        return new

    def hold_leaf(leaf: Any, grad: Any, param: Any) -> Any:
        return cast(leaf, dtype_of(grad)) if dtype_of(grad) == dtype_of(param) else leaf

    return tree_map(hold_leaf, new, grads, params)


def in_one_dtype(grads: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """All real leaves in the widest of their dtypes, float32 at least; counters stay."""
    dtype = working_dtype([leaf for leaf in leaves((grads, params)) if _is_floating(leaf)])

    def number(leaf: Any) -> Any:
        return cast(leaf, dtype) if _is_floating(leaf) else leaf

    grads, state, params = tree_map(number, _without_integers(grads, state, params))
    return grads, state, params


def _without_integers(
    grads: PyTree, state: PyTree, params: PyTree
) -> tuple[PyTree, PyTree, PyTree]:
    """Integers in float32. In a state, scalars may be counters, unsigned integers random keys."""

    def number(leaf: Any) -> Any:
        return cast(leaf, jnp.float32) if jnp.issubdtype(dtype_of(leaf), jnp.integer) else leaf

    def statistic(leaf: Any) -> Any:
        counts = jnp.ndim(leaf) == 0 or jnp.issubdtype(dtype_of(leaf), jnp.unsignedinteger)
        return leaf if counts else number(leaf)

    return tree_map(number, grads), tree_map(statistic, state), tree_map(number, params)


def _is_floating(leaf: Any) -> bool:
    return bool(jnp.issubdtype(dtype_of(leaf), jnp.floating))


def _is_scalar(leaf: Any) -> bool:
    return is_inexact(leaf) and not jnp.shape(leaf)
