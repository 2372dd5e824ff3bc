"""Sum in float32 where stock is given more than arrays: a loss, or a state that it carries."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from ..._contract.dtypes import (
    PyTree,
    cast,
    cast_like,
    dtype_of,
    is_half,
    is_real,
    leaves,
    tree_map,
    unflatten_like,
)
from ..._contract.promotion import standard_promotion
from ..._contract.widths import promoted
from ..._engine.patch import Stock
from .._support.float32 import half_to_float32


def skip_large_updates(stock: Stock, updates: PyTree, *args: Any, **kwargs: Any) -> Any:
    """Replace a function that decides by a norm; the norm that it returns keeps its dtype."""
    flat = leaves(updates)
    if not any(map(is_half, flat)):
        return stock(updates, *args, **kwargs)
    with standard_promotion():  # The limit may be in half precision.
        skip, state = stock(half_to_float32(flat), *args, **kwargs)
    dtype = promoted(*map(dtype_of, flat))
    return skip, {**state, "norm_squared": cast(state["norm_squared"], dtype)}


def accumulator(stock: Stock, *args: Any) -> Any:
    """Replace an accumulator of ``microbatch``: it carries a list, in float32 or wider."""
    accumulator = stock(*args)
    first: list[PyTree] = []

    def init(value: PyTree) -> PyTree:
        first[:] = [value]  # A value up to 0.2.7, then its shapes and dtypes.
        return accumulator.init(half_to_float32(leaves(value)))

    def update(carry: PyTree, value: PyTree, index: Any) -> PyTree:
        return accumulator.update(carry, half_to_float32(leaves(value)), index)

    def finalize(carry: PyTree) -> PyTree:
        (like,) = first
        return unflatten_like(like, cast_like(accumulator.finalize(carry), leaves(like)))

    return dataclasses.replace(accumulator, init=init, update=update, finalize=finalize)


def hessian_diag(stock: Stock, loss: Any, params: PyTree, *args: Any, **kwargs: Any) -> Any:
    """Give stock params in the dtype of its unit vectors; the loss is called with the user's."""
    default = jnp.zeros(()).dtype
    if all(dtype_of(leaf) == default for leaf in leaves(params) if is_real(leaf)):
        return stock(loss, params, *args, **kwargs)
    wide = tree_map(lambda leaf: cast(leaf, default) if is_real(leaf) else leaf, params)

    def loss_of_wide(params_: PyTree, *args: Any) -> Any:
        return cast(loss(cast_like(params_, params), *args), default)

    diagonal = stock(loss_of_wide, wide, *args, **kwargs)
    return cast(diagonal, promoted(*map(dtype_of, leaves(params))))
