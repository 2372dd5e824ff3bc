"""promotion: state and updates are not promoted to a dtype that no input has.

Most optimizers multiply a leaf by a scalar of their own, and JAX promotes: an int32 leaf times a
float is float32, a bfloat16 leaf times a float32 array is float32, and under x64 the float64 of
``1 - step**-0.8`` makes everything float64. ``jax_numpy_dtype_promotion="strict"`` raises instead.
Where stock keeps the dtypes of its inputs, nothing is cast and the program is stock's.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from .._contract.dtypes import (
    FLOATS,
    PyTree,
    array_dtypes,
    cast,
    dtype_of,
    is_inexact,
    is_number,
    leaves,
)
from .._contract.promotion import standard_promotion
from .._contract.updates import exceeded_limits, limits, requested_dtypes
from .._contract.widths import real_dtype
from .._engine.patch import Stock
from .door.arguments import arguments_of
from .door.combine import combine  # noqa: F401  # For ``wrapped.py``.
from .door.keep_dtypes import (
    KeepDtypes,
    cast_integers_to_float32,
    cast_mixed_to_one_dtype,
    cast_to_one_dtype,
)
from .door.layer import Layer
from .door.rebuild import call_of, in_place_of

replace = KeepDtypes()
in_32_bits = KeepDtypes(in_32_bits=True)
in_one_dtype = KeepDtypes(cast_to_one_dtype, in_32_bits=True)
no_integers = KeepDtypes(cast_integers_to_float32)
no_integers_in_32_bits = KeepDtypes(cast_integers_to_float32, in_32_bits=True)
any_gradients = KeepDtypes(any_gradients=True)
any_gradients_in_32_bits = KeepDtypes(cast_to_one_dtype, in_32_bits=True, any_gradients=True)
any_gradients_in_one_dtype = KeepDtypes(cast_to_one_dtype, any_gradients=True)
around_another = KeepDtypes(around_another=True)
# Stock draws its directions in one dtype for all leaves. It runs in the user's mode: in 32-bit mode
# stock would draw other directions.
hessian = KeepDtypes(cast_mixed_to_one_dtype)
# The value of a loss in float32 makes updates float32.
promoted_by_loss = KeepDtypes(may_promote=True)


def bias_correction(stock: Stock, moment: PyTree, *args: Any, **kwargs: Any) -> PyTree:
    """Correct integers in float32: stock rounds the divisor to their dtype, and divides by 0.

    ``nadam`` corrects the gradients themselves.
    """
    if not FLOATS.issuperset(array_dtypes(moment) or (None,)):
        moment, _, _ = cast_integers_to_float32(moment, (), ())
    return stock(moment, *args, **kwargs)


def schedule(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function that builds a schedule; the other schedules are made of these."""
    schedule = stock(*args, **kwargs)

    def run_schedule(*args: Any, **kwargs: Any) -> Any:
        with standard_promotion():
            return schedule(*args, **kwargs)

    return in_place_of(schedule, run_schedule, call_of(stock, args, kwargs))


class _Lookahead(KeepDtypes):
    """Bound pairs of updates: params and updates of lookahead are fast and slow ones."""

    def limits(
        self, updates: Any, grads: PyTree, params: PyTree, state: PyTree, requested: tuple[Any, ...]
    ) -> list[Any] | None:
        fast = limits(updates.fast, grads, params.fast, state, requested)
        slow = limits(updates.slow, grads, params.slow, state, requested)
        return None if fast is None or slow is None else fast + slow


class _Flatten(KeepDtypes):
    """Bound updates by the one vector that the state of flatten keeps for all params."""

    def find_like_params(self, params: PyTree, state: PyTree, grads: PyTree) -> PyTree:
        like = super().find_like_params(params, state, grads)
        if params is not None or like:
            return like
        flat = leaves(grads)
        return self._vectors(state, flat)[:1] * len(flat)

    def limits(
        self,
        updates: PyTree,
        grads: PyTree,
        params: PyTree,
        state: PyTree,
        requested: tuple[Any, ...],
    ) -> list[Any] | None:
        kept = list(map(dtype_of, self._vectors(state, leaves(grads))))
        if params is not None:  # A vector in the common dtype does not tell the dtype of one param.
            widest = real_dtype(params)
            kept = [dtype for dtype in kept if jnp.finfo(dtype).bits > jnp.finfo(widest).bits]
        return exceeded_limits(updates, grads, params, state, (*requested, *kept))

    def _vectors(self, state: PyTree, grads: list[Any]) -> list[Any]:
        size = sum(map(jnp.size, grads))
        found = (leaf for leaf in leaves(state) if is_number(leaf) and is_inexact(leaf))
        return [leaf for leaf in found if jnp.shape(leaf) == (size,)]


class _Counting(KeepDtypes):
    """Count in int32, where stock counts in int64 in 64-bit mode."""

    def start(self, tx: Any, params: PyTree) -> PyTree:
        state = super().start(tx, params)
        return state._replace(t=cast(state.t, jnp.int32))


flatten = _Flatten()
lookahead = _Lookahead()
count_in_int32 = _Counting()


def sophia(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace the default estimator, which stock built when optax was imported.

    A user-defined estimator is left alone.
    """
    arguments = arguments_of(stock, args, kwargs)
    estimator = arguments["hessian_diagonal_fn"]
    if estimator.update.__module__ == stock.__module__:
        arguments["hessian_diagonal_fn"] = type(estimator)(*estimator)
    return stock(**arguments)


def adafactor(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Bound the updates, which are the momentum: its dtype is float32 unasked."""
    if arguments_of(stock, args, kwargs)["momentum"] is None:
        return stock(*args, **kwargs)
    return alias(stock, *args, **kwargs)


def alias(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Let what a function makes of several transformations keep its dtypes."""
    requested = requested_dtypes(stock, args, kwargs)
    layer = Layer(stock(*args, **kwargs), "", requested, keep=replace)
    return layer.rebuild(call_of(stock, args, kwargs))
