"""Small trees of params, and the dtypes that the tests give them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

tree_map = jax.tree_util.tree_map
leaves = jax.tree_util.tree_leaves


def tree_of(dtype: Any, *more: Any, seed: int = 0) -> dict[str, Any]:
    """Return a matrix of the first dtype and a vector of the last, with values near one."""
    random = np.random.default_rng(seed)
    last = more[-1] if more else dtype
    return {
        "w": jnp.asarray(random.normal(size=(3, 4)), dtype),
        "b": jnp.asarray(random.normal(size=(4,)), last),
    }


REGIMES = {
    "float32": (False, (jnp.float32,)),
    "bfloat16": (False, (jnp.bfloat16,)),
    "float16": (False, (jnp.float16,)),
    "mixed": (False, (jnp.bfloat16, jnp.float32)),
    "halves": (False, (jnp.bfloat16, jnp.float16)),
    "integer leaf": (False, (jnp.float32, jnp.int32)),
    "float32 x64": (True, (jnp.float32,)),
    "bfloat16 x64": (True, (jnp.bfloat16,)),
    "float64 x64": (True, (jnp.float64,)),
    "mixed x64": (True, (jnp.float32, jnp.float64)),
    "integer leaf x64": (True, (jnp.float32, jnp.int64)),
}
"""For each regime: whether 64-bit mode is on, and the arguments of :func:`tree_of`."""


def in_float64(tree: Any) -> Any:
    """Return the leaves as float64 arrays of numpy."""
    return tree_map(lambda leaf: np.asarray(leaf).astype(np.float64), tree)


def dtypes_of(tree: Any) -> list[Any]:
    """Return the dtype of each leaf."""
    return [leaf.dtype for leaf in leaves(tree)]


def types(tree: Any) -> list[tuple[Any, ...]]:
    """Return shape, dtype and weak type of each leaf."""
    return [(leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in leaves(tree)]
