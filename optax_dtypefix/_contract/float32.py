"""Recognize the problems in which no dtype can change: float32 arrays and counters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .dtypes import PyTree, dtype_of, is_weak, leaves, strong_dtypes

_FLOAT32 = jnp.dtype(jnp.float32)
_NUMBERS_AND_COUNTERS = frozenset(map(jnp.dtype, ("float32", "int32", "uint32", "bool")))


def dtypes_in_float32(state: PyTree, *trees: PyTree) -> list[Any] | None:
    """List the dtypes of a state, if no dtype can change; return None for any other problem.

    All numbers are float32 arrays of JAX, and no mode of the user changes dtypes.

    Args:
      state: may also hold counters and masks. No float may have a weak type.
      *trees: gradients, params and extra arguments.
    """
    modes: Any = jax.config
    if modes.jax_enable_x64 or modes.jax_numpy_dtype_promotion != "standard":
        return None
    dtypes = strong_dtypes(trees)
    if dtypes is None or dtypes.count(_FLOAT32) < len(dtypes):
        return None
    kept = strong_dtypes(state)
    if kept is None:  # A hyperparameter may be a Python integer, which stays weakly typed.
        kept = strong_dtypes([leaf for leaf in leaves(state) if not _is_weak_integer(leaf)])
    return kept if kept is not None and _NUMBERS_AND_COUNTERS.issuperset(kept) else None


def _is_weak_integer(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and is_weak(leaf) and dtype_of(leaf) == jnp.int32
