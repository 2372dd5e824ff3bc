"""promotion: state and updates are not promoted to a dtype that no input has.

Most optimizers multiply a leaf by a scalar of their own, and JAX promotes: an int32 leaf times a
float is float32, a bfloat16 leaf times a float32 array is float32, and under x64 the float64 of
``1 - step**-0.8`` makes everything float64. ``jax_numpy_dtype_promotion="strict"`` raises instead.
Where stock keeps the dtypes of its inputs, nothing is cast and the program is stock's.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from .._contract.dtypes import PyTree, cast
from .._contract.promotion import standard_promotion
from .._engine.patch import Stock
from .door.arguments import arguments_of, requested_dtypes
from .door.lift import lift
from .door.lifts import Asking
from .door.rebuild import call_of, in_place_of


def schedule(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function that builds a schedule; the other schedules are made of these."""
    schedule = stock(*args, **kwargs)

    def run_schedule(*args: Any, **kwargs: Any) -> Any:
        with standard_promotion():
            return schedule(*args, **kwargs)

    return in_place_of(schedule, run_schedule, call_of(stock, args, kwargs))


def count_in_int32(tx: Any, _: Any, __: Any) -> Any:
    """Count in int32, where stock counts in int64 in 64-bit mode."""

    @functools.wraps(tx.init)
    def init_fn(params: PyTree) -> Any:
        state = tx.init(params)
        return state._replace(t=cast(state.t, jnp.int32))

    return tx._replace(init=init_fn)


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
    """Let what a function makes of several transformations ask for no more than the user does."""
    tx, call = stock(*args, **kwargs), call_of(stock, args, kwargs)
    return lift(tx, call, Asking(requested=requested_dtypes(stock, args, kwargs)))
