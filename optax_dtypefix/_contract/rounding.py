"""Round to half precision: to nearest, or at random or by turns so that the mean is right."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .dtypes import cast

_SMALL = 4096
"""Arrays of up to this size share a draw."""


def round_to_nearest(leaf: Any, dtype: Any) -> Any:
    """Round to nearest. A finite number stays so: an infinite param would never move again."""
    largest = float(jnp.finfo(dtype).max)
    rounded = jnp.where(jnp.isfinite(leaf), jnp.clip(leaf, -largest, largest), leaf)
    # XLA may skip a cast there and back, but not this.
    normal = jax.lax.reduce_precision(rounded, jnp.finfo(dtype).nexp, jnp.finfo(dtype).nmant)
    if dtype == jnp.float16:  # Below its normal numbers, neighbours are 2^-24 apart.
        tiny = jnp.round(rounded * 2.0**24) * 2.0**-24
        normal = jnp.where(jnp.abs(rounded) < 2.0**-14, tiny, normal)
    return cast(normal, dtype)


def bits_of(leaf: Any) -> Any:
    """Return the bits of a half-precision array: XLA may skip its rounding in a comparison."""
    return jax.lax.bitcast_convert_type(leaf, jnp.uint16)


def random_bits(key: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """Draw 16 bits for each element of arrays of these shapes.

    Small arrays share a draw: a draw takes XLA a tenth of a second to compile.
    """
    key_of_small, *keys = jax.random.split(key, len(shapes) + 1)
    sizes = [math.prod(shape) for shape in shapes]
    small = [size if size <= _SMALL else 0 for size in sizes]
    pieces = jnp.split(jax.random.bits(key_of_small, (sum(small),), jnp.uint16), np.cumsum(small))
    return [
        piece.reshape(shape) if size <= _SMALL else jax.random.bits(own, shape, jnp.uint16)
        for piece, shape, size, own in zip(pieces, shapes, sizes, keys)
    ]


@jax.jit
def bits_of_step(count: Any) -> Any:
    """Return 16 bits for a step, those of a half for step 0.

    Multiples of the golden ratio spread most evenly, also over every second or tenth step.
    """
    return (jnp.asarray(count, jnp.uint32) * jnp.uint32(_GOLDEN) + jnp.uint32(2**15)).astype(
        jnp.uint16
    )


def bits_for(shape: tuple[int, ...], bits: Any) -> Any:
    """Give the bits of a step to an array, or to each row of a stacked state those of its own.

    An array that has no row for each counter is rounded to nearest.
    """
    if not bits.shape:
        return bits
    if shape[: bits.ndim] != bits.shape:
        return jnp.uint16(2**15)
    return bits.reshape(bits.shape + (1,) * (len(shape) - bits.ndim))


_GOLDEN = 40503  # 2^16 times the golden ratio - 1, made odd.


def bits_by_turns(count: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """Return 16 bits for each element of arrays of these shapes.

    Each element goes through the multiples of the golden ratio, from a place of its own: rounded
    alike, all weights of a layer would grow together, and shrink together.
    """
    bits = bits_of_step(count)
    return [_places(shape, leaf) + bits_for(shape, bits) for leaf, shape in enumerate(shapes)]


def _places(shape: tuple[int, ...], leaf: int) -> Any:
    place = jnp.full(shape, leaf * 0x27D4EB2F % 2**32, jnp.uint32)
    for axis, odd in zip(range(len(shape)), itertools.cycle((0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D))):
        place = place + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(odd)
        place = (place ^ (place >> 15)) * jnp.uint32(0x2C1B3C6D)
    return (place >> 16).astype(jnp.uint16)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def round_stochastically(leaf: Any, dtype: Any, bits: Any) -> Any:
    """Round up or down to a neighbour in half precision, each as likely as it is near.

    Args:
      leaf: an array of floats, of any shape.
      dtype: bfloat16 or float16.
      bits: an array of random uint16, of the same shape.

    Returns:
      An array of ``dtype``. What it has exactly stays; no finite number becomes infinite. The
      derivative is that of a cast.
    """
    leaf = cast(leaf, jnp.float32)
    dropped = 23 - jnp.finfo(dtype).nmant  # Bits of the mantissa.
    mask = jnp.uint32(2**dropped - 1)
    random = bits.astype(jnp.uint32) >> (16 - dropped)
    exact = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    rounded = jax.lax.bitcast_convert_type((exact + random) & ~mask, jnp.float32)
    if jnp.finfo(dtype).minexp > jnp.finfo(jnp.float32).minexp:
        # Below the normal numbers of float16, neighbours are 2^-24 apart.
        steps = leaf * 2.0**24
        below = jnp.floor(steps)
        up = steps - below > (bits.astype(jnp.float32) + 0.5) * 2.0**-16
        steps = jnp.where(up, below + 1, below)  # -0 stays -0.
        rounded = jnp.where(jnp.abs(leaf) < 2.0**-14, steps * 2.0**-24, rounded)
    largest = float(jnp.finfo(dtype).max)
    rounded = jnp.clip(rounded, -largest, largest)
    return jnp.where(jnp.isfinite(leaf), rounded, leaf).astype(dtype)


@round_stochastically.defjvp
def _straight_through(dtype: Any, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> Any:
    return round_stochastically(primals[0], dtype, primals[1]), tangents[0].astype(dtype)
