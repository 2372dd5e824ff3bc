"""Round to half precision: to nearest, or up and down so that the mean is right."""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .bits import cut
from .dtypes import cast, dtype_of

Rounding = Callable[[Any, Any, Any], Any]
"""Rounds ``x`` to the dtype of ``old`` with 16 bits, those of a half to round to nearest."""


def round_to_nearest(leaf: Any, dtype: Any) -> Any:
    """Round to nearest. A finite number stays so: an infinite param would never move again."""
    # Changes nothing. But XLA writes a float32 array that a loop uses twice: 8 bytes of traffic
    # a param, and 4 of memory, in a step of adam in float16.
    infinity = np.asarray(np.inf, dtype_of(leaf))
    leaf = lax.clamp(-infinity, leaf, infinity)
    largest = float(jnp.finfo(dtype).max)
    rounded = jnp.where(jnp.isfinite(leaf), jnp.clip(leaf, -largest, largest), leaf)
    normal = _reduce_precision(rounded, dtype)
    if dtype == jnp.float16:  # Below its normal numbers, neighbours are 2^-24 apart.
        tiny = jnp.round(rounded * 2.0**24) * 2.0**-24
        normal = jnp.where(jnp.abs(rounded) < 2.0**-14, tiny, normal)
    return cast(normal, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))  # Old versions of JAX have no derivative.
def _reduce_precision(leaf: Any, dtype: Any) -> Any:
    # XLA may skip a cast there and back, but not this.
    return lax.reduce_precision(leaf, jnp.finfo(dtype).nexp, jnp.finfo(dtype).nmant)


@_reduce_precision.defjvp
def _keep_tangent(dtype: Any, primals: tuple[Any], tangents: tuple[Any]) -> Any:
    return _reduce_precision(primals[0], dtype), tangents[0]


def round_leaf(leaf: Any, dtype: Any) -> Any:
    """Round a leaf to nearest. A number that is finite stays so in float16."""
    if dtype == jnp.float16 and dtype_of(leaf) != jnp.float16:
        return round_to_nearest(leaf, dtype)
    return cast(leaf, dtype)


def bits_of(leaf: Any) -> Any:
    """Return the bits of a half-precision array: XLA may skip its rounding in a comparison."""
    return lax.bitcast_convert_type(leaf, jnp.uint16)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def round_stochastically(leaf: Any, dtype: Any, bits: Any) -> Any:
    """Round up or down to a neighbour in half precision, each as likely as it is near.

    Args:
      leaf: an array of floats, of any shape.
      dtype: bfloat16 or float16.
      bits: random, of the same shape or one that broadcasts: uint16, or uint32 of which the upper
        half counts.

    Returns:
      An array of ``dtype``. What it has exactly stays; no finite number becomes infinite. The
      derivative is that of a cast.
    """
    leaf, bits = cast(leaf, jnp.float32), jnp.asarray(bits, jnp.int32)
    if dtype == jnp.bfloat16:  # The upper half of float32.
        exact = lax.bitcast_convert_type(leaf, np.int32)
        moved = lax.max(exact, lax.add(exact, jnp.broadcast_to(bits, leaf.shape)))
        kept = lax.bitwise_and(moved, np.full((1,) * leaf.ndim, -65536, np.int32))
        return lax.convert_element_type(lax.bitcast_convert_type(kept, np.float32), dtype)
    info = jnp.finfo(dtype)
    dropped = 23 - info.nmant  # Bits of the mantissa.
    # Neither an infinite number nor NaN is another one without its last bits.
    random = jnp.where(jnp.abs(leaf) < float(info.max), bits >> (16 - dropped), 0)
    exact = lax.bitcast_convert_type(leaf, jnp.int32) + random
    rounded = lax.bitcast_convert_type(exact & np.int32(-(2**dropped)), jnp.float32)
    # Below the normal numbers of float16, neighbours are 2^-24 apart.
    finite = jnp.clip(leaf, -1.0, 1.0)  # ``debug_nans`` refuses what infinity would give here.
    steps = finite * 2.0**24
    below = jnp.floor(steps)
    up = steps - below > (bits.astype(jnp.float32) + 0.5) * 2.0**-16
    steps = jnp.where(up, below + 1, below)  # -0 stays -0.
    rounded = jnp.where(jnp.abs(leaf) < 2.0**-14, steps * 2.0**-24, rounded)
    rounded = jnp.clip(rounded, -float(info.max), float(info.max))
    return jnp.where(jnp.isfinite(leaf), rounded, leaf).astype(dtype)


@round_stochastically.defjvp
def _straight_through(dtype: Any, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> Any:
    return round_stochastically(primals[0], dtype, primals[1]), tangents[0].astype(dtype)


def dither(x: Any, old: Any, bits: Any) -> Any:
    """Round an average, or a sum, so that its mean over steps is right."""
    rounded = round_stochastically(x, old.dtype, bits)
    if old.dtype != jnp.float16:
        return rounded
    # A step of the smallest numbers is large beside a mean of numbers of both signs.
    return jnp.where(jnp.abs(x) < 2.0**-14, round_leaf(x, old.dtype), rounded)


def dither_above_zero(x: Any, old: Any, bits: Any) -> Any:
    """Round an average, or a sum, of what is positive, and by which an update is divided."""
    return _above_zero(x, round_stochastically(x, old.dtype, bits))


def dither_alike(x: Any, old: Any, bits: Any) -> Any:
    """Round what is the maximum and the minimum of others, with the same bits for all elements.

    So rounding commutes with both: the least of elements that are rounded apart is too low. Where
    no element moves, gradients may repeat, and the bits with them: there round to nearest.
    """
    alike = dither_above_zero(x, old, cut(bits, (1,) * bits.ndim))
    moves = jnp.any(bits_of(alike) != bits_of(old))
    return jnp.where(moves, alike, dither_above_zero(x, old, jnp.uint16(2**15)))


def dither_within_root(x: Any, old: Any, bits: Any) -> Any:
    """Round an average whose square float16 has to hold, too."""
    if old.dtype == jnp.float16:
        x = jnp.where(jnp.isinf(x), x, jnp.clip(x, -255.0, 255.0))
    return dither(x, old, bits)


def round_above_zero(x: Any, old: Any, bits: Any) -> Any:
    """Round a maximum to nearest, which commutes with it: any other way finds the highest turn."""
    del bits
    return _above_zero(x, round_leaf(x, old.dtype))


def _above_zero(x: Any, rounded: Any) -> Any:
    """Keep positive what is: a moment of zero makes an update too large by orders of magnitude."""
    if rounded.dtype != jnp.float16:
        return rounded
    tiny = 2.0**-24  # The smallest number above zero in float16.
    return jnp.where(x > 0, jnp.maximum(rounded, jnp.float16(tiny)), rounded)
