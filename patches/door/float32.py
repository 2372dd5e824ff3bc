"""Cast what stock is given to float32."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..._contract.dtypes import (
    PyTree,
    cast,
    dtypes_in,
    is_half,
    is_half_dtype,
    tree_map,
)


def half_to_float32(tree: PyTree) -> PyTree:
    """Cast half-precision leaves to float32, for arithmetic; leave others alone."""
    if not any(map(is_half_dtype, dtypes_in(tree))):
        return tree
    return tree_map(lambda leaf: cast(leaf, jnp.float32) if is_half(leaf) else leaf, tree)


def cast_hyperparameter(value: Any, dtype: Any) -> Any:
    """Cast the arrays of a number or schedule to ``dtype``; keep a Python number."""
    if callable(value):
        return lambda count: cast_hyperparameter(value(count), dtype)
    if not hasattr(value, "dtype"):
        return value
    return cast(value, dtype)
