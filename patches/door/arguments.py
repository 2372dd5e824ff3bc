"""Read the arguments that a transformation was built with, and limit what strong ones promote."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from ..._contract.dtypes import cast, is_array, is_half, is_real, is_weak
from ..._engine.patch import Stock
from .closures import is_users_function


def arguments_of(stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """List every argument of a call by name, with its default if it was not given."""
    bound = inspect.signature(stock).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def array_in(value: Any, dtype: Any) -> Any:
    """Cast a JAX array to at most ``dtype``, and to at least 32 bits; leave other values alone.

    Python and NumPy numbers promote nothing once all arrays have one dtype outside 64-bit mode.
    Rounding them first could change the last bit of a product of two of them.
    """
    if is_array(value) and is_half(value):
        return _cast_now(value, dtype)
    if not isinstance(value, jax.Array):
        return value
    if jnp.issubdtype(value.dtype, jnp.integer):
        dtype = jnp.dtype(jnp.int32)
    is_wide = not jnp.issubdtype(value.dtype, jnp.complexfloating)
    is_wide = is_wide and value.dtype.itemsize > dtype.itemsize
    return _cast_now(value, dtype) if is_wide else value


def _cast_now(value: Any, dtype: Any) -> Any:
    """Cast within a trace, but keep a concrete number concrete: stock may compare it."""
    if isinstance(value, jax.core.Tracer):
        return cast(value, dtype)
    with jax.ensure_compile_time_eval():
        return cast(value, dtype)


def no_wider_than(widest: Any, value: Any) -> Any:
    """Cast a float64 argument, or the value of a schedule, to the widest dtype of the leaves.

    In 32-bit mode a float64 of NumPy is as good as a float32.
    """
    if is_users_function(value):
        return lambda *args, **kwargs: no_wider_than(widest, value(*args, **kwargs))
    if isinstance(value, float) and value == 0:
        return float(value)  # NumPy's float64 is one. Stock skips such a decay, and 0 * inf is nan.
    if is_weak(value) or not is_array(value) or not is_real(value):
        return value
    return cast(value, widest) if value.dtype.itemsize > widest.itemsize else value
