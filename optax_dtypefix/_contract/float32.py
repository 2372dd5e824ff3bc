"""Recognize the problems in which no dtype can change: float32 arrays and counters."""

from __future__ import annotations

from operator import attrgetter

import jax
import jax.numpy as jnp

from .dtypes import PyTree, leaves

_FLOAT32 = frozenset({jnp.dtype(jnp.float32)})
_NUMBERS_AND_COUNTERS = _FLOAT32 | {jnp.dtype(name) for name in ("int32", "uint32", "bool")}
_dtype, _weak_type = attrgetter("dtype"), attrgetter("weak_type")


def is_float32(state: PyTree, *trees: PyTree) -> bool:
    """Check that all numbers are float32 arrays of JAX, and no mode of the user changes dtypes.

    Args:
      state: may also hold counters and masks. No leaf may have a weak type.
      *trees: gradients, params and extra arguments.
    """
    if jax.config.jax_enable_x64 or jax.config.jax_numpy_dtype_promotion != "standard":
        return False
    given, kept = leaves(trees), leaves(state)
    try:  # Without generators: this runs in each eager step.
        return (
            _FLOAT32.issuperset(map(_dtype, given))
            and _NUMBERS_AND_COUNTERS.issuperset(map(_dtype, kept))
            and not any(map(_weak_type, given))
            and not any(map(_weak_type, kept))
        )
    except AttributeError:  # Python and NumPy numbers, functions, random keys.
        return False
