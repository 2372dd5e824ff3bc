"""Round to half precision: to nearest, or at random or by turns so that the mean is right."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from .dtypes import cast, dtype_of

Rounding = Callable[[Any, Any, Any], Any]
"""Rounds ``x`` to ``dtype`` with ``bits``: 16 of them, those of a half to round to nearest."""

_SMALL = 4096
"""Arrays of up to this size share a draw."""


def round_to_nearest(leaf: Any, dtype: Any) -> Any:
    """Round to nearest. A finite number stays so: an infinite param would never move again."""
    largest = float(jnp.finfo(dtype).max)
    return cast(jnp.where(jnp.isfinite(leaf), jnp.clip(leaf, -largest, largest), leaf), dtype)


def round_leaf(leaf: Any, dtype: Any) -> Any:
    """Round a leaf to nearest. A number that is finite stays so in float16."""
    if dtype == jnp.float16 and dtype_of(leaf) != jnp.float16:
        return round_to_nearest(leaf, dtype)
    return cast(leaf, dtype)


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

    41 steps visit each of 41 equal parts once, in the order of 7 n^3 modulo 41. A gradient that
    comes back every P-th step visits them in an order of its own. (Multiples of the golden ratio
    lock to such gradients: large ones are rounded alike for hundreds of steps.) The place within a
    part changes every 41 steps, and all places change every 656, for the periods of 41.
    """
    count = jnp.asarray(count, jnp.uint32)
    turn = count % _PARTS
    part = 7 * turn * turn * turn % _PARTS * (2**16 // _PARTS)
    block = count // _PARTS
    within = (block * jnp.uint32(_GOLDEN) & 0xFFFF) // _PARTS
    return (part + within + (mix(block >> 4) >> 16) + 2**15).astype(jnp.uint16)


def mix(number: Any) -> Any:
    """Return a number from which each bit of another depends; 0 stays."""
    for shift, odd in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        number = (number ^ (number >> shift)) * jnp.uint32(odd)
    return number ^ (number >> 16)


def bits_for(shape: tuple[int, ...], bits: Any) -> Any:
    """Give the bits of a step to an array, or to each row of a stacked state those of its own.

    An array that has no row for each counter is rounded to nearest.
    """
    if not bits.shape:
        return bits
    if shape[: bits.ndim] != bits.shape:
        return jnp.uint16(2**15)
    return bits.reshape(bits.shape + (1,) * (len(shape) - bits.ndim))


_PARTS, _GOLDEN = 41, 40503  # The second is 2^16 times the golden ratio - 1, made odd.


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


def dither(x: Any, dtype: Any, bits: Any) -> Any:
    """Round an average, or a sum, so that its mean over steps is right."""
    rounded = round_stochastically(x, dtype, bits)
    if dtype != jnp.float16:
        return rounded
    # A step of the smallest numbers is large beside a mean of numbers of both signs.
    return jnp.where(jnp.abs(x) < 2.0**-14, round_leaf(x, dtype), rounded)


def dither_above_zero(x: Any, dtype: Any, bits: Any) -> Any:
    """Round an average, or a sum, of what is positive, and by which an update is divided."""
    return _above_zero(x, round_stochastically(x, dtype, bits))


def dither_within_root(x: Any, dtype: Any, bits: Any) -> Any:
    """Round an average whose square float16 has to hold, too."""
    if dtype == jnp.float16:
        x = jnp.where(jnp.isinf(x), x, jnp.clip(x, -255.0, 255.0))
    return dither(x, dtype, bits)


def round_above_zero(x: Any, dtype: Any, bits: Any) -> Any:
    """Round a maximum to nearest, which commutes with it: any other way finds the highest turn."""
    del bits
    return _above_zero(x, round_leaf(x, dtype))


def _above_zero(x: Any, rounded: Any) -> Any:
    """Keep positive what is: a moment of zero makes an update too large by orders of magnitude."""
    if rounded.dtype != jnp.float16:
        return rounded
    tiny = 2.0**-24  # The smallest number above zero in float16.
    return jnp.where(x > 0, jnp.maximum(rounded, jnp.float16(tiny)), rounded)
