"""Read and cast the arguments of functions of optax."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from ..._contract.dtypes import cast, is_array, is_half
from ..._contract.signatures import is_of_dtype, positional_names
from ..._engine.patch import Stock


def arguments_of(stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """List every argument of a call by name, with its default if it was not given."""
    bound = inspect.signature(stock).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def requested_dtypes(
    stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """List the dtypes that a call asks for, as in ``mu_dtype=jnp.float32``; defaults do not ask.

    ``inject_hyperparams`` calls a dtype as a schedule, and may give an array in its place.
    """
    given = {**dict(zip(positional_names(stock), args)), **kwargs}
    dtypes = {name: value for name, value in given.items() if is_of_dtype(name)}
    requested = (value for value in dtypes.values() if value is not None and not is_array(value))
    return tuple(map(jax.dtypes.canonicalize_dtype, requested))


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
