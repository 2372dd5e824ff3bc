"""Find out, abstractly, where stock keeps a state in float32: there it loses no digits (C0).

Nothing is computed. Stock may raise for these dtypes; then it has nothing to be as wide as.
"""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp

from ..._contract.dtypes import (
    REAL,
    PyTree,
    cast,
    is_array,
    is_half,
    is_real,
    is_weak,
    kind_of,
    leaves,
    unflatten_like,
)
from ..._contract.kinds import after_a_step
from ..._contract.promotion import standard_promotion
from ..._contract.updates import kept_like, same_dtypes
from ..._tally import paused


def without_user_code(arguments: dict[str, Any]) -> dict[str, Any]:
    """Replace the schedules and masks among the arguments of an optimizer: the user's do not run.

    A schedule returns a float32 array, as those of optax do.
    """
    found = {name: _float32 if callable(value) else value for name, value in arguments.items()}
    return {**found, "mask": None} if "mask" in found else found


def _float32(_: Any) -> Any:
    return jnp.zeros((), jnp.float32)


def promotes_half(argument: Any) -> bool:
    """Check whether a hyperparameter is an array that promotes half precision, as ``0.9`` is not.

    Stock's moments are then wide from the first step on, and lose no digits.
    """
    if not is_array(argument):
        return False
    return not is_weak(argument) and is_real(argument) and not is_half(argument)


def start_as_stock(tx: Any, state: PyTree, params: PyTree) -> PyTree:
    """Start in float32 what stock starts in float32, or makes so in its first two steps.

    Args:
      tx: the transformation, as stock builds it.
      state: a new state of that transformation, narrow where a param is.
      params: arrays or ``jax.ShapeDtypeStruct``.
    """
    if not any(map(is_half, leaves(state))):
        return state
    with standard_promotion():
        for tree in (params, leaves(params)):  # A node of the user's may take arrays alone.
            try:
                with paused():
                    stock = jax.eval_shape(tx.init, tree)
            except Exception:
                continue
            for _ in range(2):  # A scalar may become float32 first, and then the moments.
                after = after_a_step(tx.update, stock, tree)
                stock = stock if after is None else _as_wide_as(stock, after)
            return _as_wide_as(state, leaves(stock))
    return state


def as_stock_promotes(
    update: Callable[..., Any], updates: PyTree, state: PyTree, params: PyTree
) -> PyTree:
    """Cast the half-precision leaves of a state to the dtypes that stock gives them in this step.

    Stock promotes some of them where a gradient is wider than its param.
    """
    like = params if params is not None else next(iter(kept_like(state, updates)), updates)
    if same_dtypes(updates, like):
        return state
    try:
        with paused():
            after = jax.eval_shape(lambda *a: leaves(update(*a)[1]), updates, state, params)
    except Exception:
        return state
    return _as_wide_as(state, after)


def _as_wide_as(state: PyTree, stock: list[Any]) -> PyTree:
    """Cast half-precision leaves to float32 where stock's leaf is as wide, or wider."""
    flat = leaves(state)
    if len(flat) != len(stock):
        return state

    def widened(leaf: Any, other: Any) -> Any:
        wide = is_half(leaf) and kind_of(other.dtype) == REAL and not is_half(other)
        return cast(leaf, jnp.float32) if wide else leaf

    return unflatten_like(state, map(widened, flat, stock))
