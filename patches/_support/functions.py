"""Run functions of arrays in float32, with results in stock's dtypes."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp

from ..._contract.dtypes import (
    cast,
    dtype_of,
    is_array,
    is_half,
    is_weak,
    leaves,
    same_structure,
    unflatten_like,
)
from ..._contract.trace import trace_once
from ..._contract.updates import update_dtype
from ..._engine.patch import Stock
from .float32 import half_to_float32


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
        return update_dtype(dtype, *map(dtype_of, place), requested=requested)

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
