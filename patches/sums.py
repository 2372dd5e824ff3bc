"""sums: functions that sum inside one call sum half precision in float32.

bfloat16 has 8 bits: 256 + 1 == 256, so a sum of ones stops at 256, and a mean of 4,096 ones that
are added one by one is 0.0625. In float16 the sum of squares overflows above 65504. Stock's
``skip_large_updates`` then skips every step of a ``MultiSteps``, for ever.

Here stock runs on float32 copies of the half-precision arguments, and the results have the dtypes
that stock gives them. So a float16 sum above 65504 that the user asks for is still infinite.

No upstream issue was found.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import jax
import jax.numpy as jnp

from .._contract.dtypes import (
    PyTree,
    cast,
    cast_like,
    dtype_of,
    is_array,
    is_half,
    is_real,
    is_weak,
    leaves,
    same_structure,
    tree_map,
    unflatten_like,
)
from .._contract.promotion import standard_promotion
from .._contract.trace import trace_once
from .._contract.updates import limit
from .._contract.widths import promoted
from .._engine.patch import Stock
from .door.float32 import half_to_float32


def in_float32(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function: it is given float32 copies of its half-precision arguments.

    Its results have stock's dtypes.
    """
    return _run_in_float32(stock, args, kwargs, lambda dtype, *_: dtype)


def trees_in_float32(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function of trees in the same way.

    A leaf is no wider than the same leaves of the trees given, or than another strong argument.
    """
    strong = filter(_is_strong, (*args, *kwargs.values()))
    requested = tuple(map(dtype_of, strong))

    def bound(dtype: Any, *place: Any) -> Any:
        return limit(dtype, *map(dtype_of, place), requested=requested)

    return _run_in_float32(stock, args, kwargs, bound)


def _run_in_float32(
    stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any], bound: Callable[..., Any]
) -> Any:
    values = [*args, *kwargs.values()]
    trees = list(filter(_is_tree, values))
    if not any(map(is_half, leaves(values))) or not same_structure(*trees):
        return stock(*args, **kwargs)
    try:
        wide_args, wide_kwargs = half_to_float32((args, kwargs))
    except Exception:  # A pytree node of the user's takes no other dtype.
        return stock(*args, **kwargs)
    results = stock(*wide_args, **wide_kwargs)
    flat = leaves(results)
    dtypes = list(map(dtype_of, trace_once(stock, *args, **kwargs) or flat))
    rows = list(zip(*map(leaves, trees)))
    arrays = list(filter(is_array, values))

    def is_column(result: Any) -> bool:
        return bool(trees) and same_structure(result, trees[0])

    def places_of(part: Any) -> list[Any]:
        if is_column(part):
            return rows
        return [[array for array in arrays if array.shape == jnp.shape(part)]]

    parts = jax.tree_util.tree_leaves(results, is_leaf=is_column)
    places = [place for part in parts for place in places_of(part)]
    bounds = [bound(dtype, *place) for dtype, place in zip(dtypes, places)]
    return unflatten_like(results, map(cast, flat, bounds))


def _is_strong(value: Any) -> bool:
    return is_array(value) and not is_weak(value)


def _is_tree(value: Any) -> bool:
    """Check for a tree; a tuple of axes is none."""
    is_leaf: bool = jax.tree_util.all_leaves([value])
    return not is_leaf and not all(isinstance(leaf, int) for leaf in leaves(value))


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
