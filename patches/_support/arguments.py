"""The arguments that a transformation was built with, and what strongly typed ones promote."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import jax
import jax.numpy as jnp

from ..._contract.dtypes import cast, is_half


def arguments_of(
    stock: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Every argument of a call by name, with its default if it was not given."""
    bound = inspect.signature(stock).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def array_in(value: Any, dtype: Any) -> Any:
    """A JAX array that is not wider than ``dtype``, nor narrower than 32 bits; else as it is.

    Numbers of Python and numpy promote nothing once all arrays have one dtype and there is no
    64-bit mode; to round them first could change the last bit of a product of two of them.
    """
    if hasattr(value, "dtype") and is_half(value):
        return _cast_now(value, dtype)
    if not isinstance(value, jax.Array):
        return value
    if jnp.issubdtype(value.dtype, jnp.integer):
        dtype = jnp.dtype(jnp.int32)
    is_wide = not jnp.issubdtype(value.dtype, jnp.complexfloating)
    is_wide = is_wide and value.dtype.itemsize > dtype.itemsize
    return _cast_now(value, dtype) if is_wide else value


def _cast_now(value: Any, dtype: Any) -> Any:
    """A cast that leaves a number a number within a trace: stock may compare it to check it."""
    if isinstance(value, jax.core.Tracer):
        return cast(value, dtype)
    with jax.ensure_compile_time_eval():
        return cast(value, dtype)
