"""Random bits from the data of a step: no key, no counter, no memory.

Where the bits come from: the step's own new values, before they are rounded to half precision. The
bits of all values, times odd numbers by their places, are added up; a hash of this sum and of the
number of an array says where the array starts; from there each element goes on by multiples of a
generalized golden ratio along each axis, which spread evenly over rows, columns and blocks.

What they guarantee:

- The same data give the same bits: in each run and process, eager or compiled, and, since sums of
  integers do not depend on their order, on any number of devices. Replicas stay equal. Under vmap
  each member has bits of its own data, and under ``shard_map`` each shard.
- Any change of the data, in any element, gives all elements other bits. Elements with the same
  value have different bits, and so have arrays with the same values.
- All bits are equally likely over steps. Nothing tells two steps with the same data apart: a single
  element that is rounded to where it was, and moves by the same amount again, stays for ever.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def bits_of_data(flat: list[Any]) -> list[Any]:
    """Return 16 bits for each element of the arrays of a step.

    Args:
      flat: arrays of float32, of any shapes. Their number and order matter, and each element.

    Returns:
      Arrays of uint16, of the same shapes.
    """
    starts = starts_of(list(map(sum_of, flat)))
    return [bits_from(start, leaf.shape) for start, leaf in zip(starts, flat)]


def starts_of(sums: list[Any]) -> list[Any]:
    """Return for each array the bits of its first element, 32 of them, from the sums of all.

    In an eager step arrays may lie on different devices. No program takes them all, so those of the
    same devices have bits of their own data.
    """
    is_traced = any(isinstance(number, jax.core.Tracer) for number in sums)

    def devices_of(number: Any) -> Any:
        return None if is_traced else frozenset(number.devices())

    groups: dict[Any, list[int]] = {}
    for place, number in enumerate(sums):
        groups.setdefault(devices_of(number), []).append(place)
    starts: dict[int, Any] = {}
    for places in groups.values():
        starts.update(zip(places, _starts([sums[place] for place in places])))
    return [starts[place] for place in range(len(sums))]


# Each function is compiled once for a shape: an eager step calls few programs, and a large tree of
# few shapes is traced and compiled fast.
@jax.jit
def sum_of(*data: Any) -> Any:
    """Return a number that depends on each bit of arrays of float32, and on where it stands."""
    total = jnp.zeros((), jnp.uint32)
    for leaf in data:
        bits = lax.bitcast_convert_type(lax.stop_gradient(leaf), jnp.uint32)
        bits = bits * (_places(leaf.shape) | 1)
        # Else n equal elements would add up to n times their bits, and lose the upper ones.
        bits = bits ^ (bits >> 15)
        # XLA on the CPU would store the numbers that it adds up, but not if it does two things.
        zero, axes = jnp.uint32(0), tuple(range(leaf.ndim))
        added, mixed = lax.reduce((bits, bits >> 7), (zero, zero), _add_and_mix, axes)
        total = total * jnp.uint32(_GOLDEN) + added + mixed
    return total


def _add_and_mix(old: Any, new: Any) -> tuple[Any, Any]:
    return old[0] + new[0], old[1] ^ new[1]


@jax.jit
def _starts(sums: list[Any]) -> list[Any]:
    numbered = lax.concatenate([number.reshape(1) for number in sums], 0)
    numbered = numbered + lax.iota(jnp.uint32, len(sums)) * jnp.uint32(_GOLDEN)
    total = jnp.sum(_hash(numbered), dtype=jnp.uint32)

    def hash_all(starts: list[Any], _: None) -> tuple[list[Any], None]:
        return [_hash(start + total) for start in starts], None

    # XLA would fuse what all arrays share into the program of each: compiling for minutes. It does
    # not fuse a loop, and arrays of one shape then share a program, as they do without rounding.
    numbers = [total * 0 + jnp.uint32(leaf * _GOLDEN % 2**32) for leaf in range(len(sums))]
    return lax.scan(hash_all, numbers, None, length=2)[0]


@functools.partial(jax.jit, static_argnums=1)
def bits_from(start: Any, shape: tuple[int, ...]) -> Any:
    """Return 16 bits for each element of an array, from those of its first."""
    odd = _hash(start ^ jnp.uint32(_GOLDEN)) | 1
    return ((_places(shape) * odd + start) >> 16).astype(jnp.uint16)


@functools.partial(jax.jit, static_argnums=1)
def even_bits_from(start: Any, shape: tuple[int, ...]) -> Any:
    """Return 16 bits for each element, spread evenly over the array in each single step.

    So of n elements that move by a share of a unit, about n times that share do in each step. If
    none did, all data would be the same in the next step, and all elements stay for ever.
    """
    return ((_places(shape) + start) >> 16).astype(jnp.uint16)


def _places(shape: tuple[int, ...]) -> Any:
    place = jnp.zeros(shape, jnp.uint32)
    for axis, odd in enumerate(_multipliers(len(shape))):
        place = place + lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(odd)
    return place


@functools.cache
def _multipliers(axes: int) -> list[int]:
    """Return powers of the generalized golden ratio, x^(axes + 1) = x + 1, in units of 2^-32.

    See https://extremelearning.com.au/unreasonable-effectiveness-of-quasirandom-sequences.
    """
    ratio = 2.0
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (axes + 1))
    return [int(2**32 * ratio ** -(axis + 1)) | 1 for axis in range(axes)]


def _hash(number: Any) -> Any:
    """Hash uint32 (the constants: https://github.com/skeeto/hash-prospector)."""
    number = (number ^ (number >> 16)) * jnp.uint32(0x7FEB352D)
    number = (number ^ (number >> 15)) * jnp.uint32(0x846CA68B)
    return number ^ (number >> 16)


_GOLDEN = 0x9E3779B1  # 2^32 times the golden ratio - 1, made odd.
