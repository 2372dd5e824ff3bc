"""Enter and leave the 64-bit mode of JAX."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp

from .dtypes import PyTree, leaves

if TYPE_CHECKING:
    from collections.abc import Iterator


_64_BITS = ("float64", "complex128", "int64", "uint64")


@contextlib.contextmanager
def x64(enabled: bool = True) -> Iterator[None]:
    """Switch 64-bit mode on, or off, in this thread."""
    if hasattr(jax, "enable_x64"):  # From jax 0.8 on; the one below is gone in 0.10.
        manager = jax.enable_x64(enabled)
    else:
        from jax.experimental import enable_x64  # type: ignore[attr-defined]

        manager = enable_x64(enabled)
    with manager:
        yield


def is_x64() -> bool:
    """Check whether JAX is in 64-bit mode, in this thread."""
    return bool(jnp.result_type(float) == jnp.float64)


def without_x64(function: Callable[..., Any], *args: PyTree) -> PyTree:
    """Call ``function(*args)`` in 32-bit mode, so that Python scalars and counts make no float64.

    Stock code like ``1 - 0.9**count`` is float64 in 64-bit mode. In 32-bit mode, or if an argument
    has 64 bits, nothing changes. The closure of the function is narrowed to 32 bits.

    Args:
      function: takes and returns trees of arrays.
      *args: trees of arrays.

    Returns:
      The result of the function.
    """
    if not is_x64() or any(str(getattr(a, "dtype", "")) in _64_BITS for a in leaves(args)):
        return function(*args)
    if jax.__version_info__ >= (0, 7, 2):
        with x64(False):
            return function(*args)
    from .old_x64 import run_in_32_bits  # Not at the top: jax before 0.7.2 needs it.

    return run_in_32_bits(x64(False), function, *args)
