"""Cast the params of a program to the dtypes that the environment names."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp

PARAM, COMPUTE = os.environ["PARAM_DTYPE"], os.environ["COMPUTE_DTYPE"]


def cast(params: Any) -> Any:
    """Return initial params in ``PARAM_DTYPE``."""
    return _floats(params, PARAM)


def compute(tree: Any) -> Any:
    """Return params, inputs or both in ``COMPUTE_DTYPE``, for the forward pass."""
    return _floats(tree, COMPUTE)


def _floats(tree: Any, dtype: str) -> Any:
    """Cast arrays of floats. Models of equinox also have functions and numbers as leaves."""

    def convert(leaf: Any) -> Any:
        is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(dtype) if is_float else leaf

    return jax.tree_util.tree_map(convert, tree)
