"""Bits for rounding: from the counter of a state, or from a key, or else from the data of a step.

Counters (:func:`bits_of_step`) and numbers drawn by a key tell all steps apart, and give the same
bits in each run and on any number of devices. All moments of a step have the same 16 bits, and go
through them as evenly as they can. Params have bits of their own (:func:`bits_of_elements`).

Without either, bits come from the step's own data: params and updates, or moments and gradients.
The bits of all values, times odd numbers by their places, are added up; a hash of this sum and of
the number of an array says where the array starts; from there each element goes on by multiples of
a generalized golden ratio along each axis, and one multiplication tells the elements apart.

What bits of data guarantee:

- The same data give the same bits: in each run and process, eager or compiled, and, since sums of
  integers do not depend on their order, on any number of devices. Under vmap each member has bits
  of its own data, and under ``shard_map`` each shard. What is equal on all replicas stays so: no
  array has bits of one that varies over more mapped axes (:func:`starts_of`).
- Any change of these data, in any element, gives all elements other bits. Elements with the same
  value have different bits, and so have arrays with the same values.
- All bits are equally likely over steps. Nothing tells two steps with the same data apart: a single
  element that is rounded to where it was, and moves by the same amount again, stays for ever.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Sequence


def starts_of(sums: list[tuple[Any, Any]], params: Sequence[int] | None = None) -> list[Any]:
    """Return for each array the bits of its first element, 32 of them, from the sums of all.

    What is equal on all replicas must stay so. So no array gives its sums to one that varies over
    fewer mapped axes.

    Args:
      sums: of each array, those that :func:`sums_of` returns.
      params: of each array, the number of the param that it belongs to; if not given, each array
        is a param. Where JAX does not say what varies, as inside ``pmap`` and
        ``shard_map(check_vma=False)``, a param has bits of its own arrays alone.
    """
    if any(isinstance(number, jax.core.Tracer) for number, _ in sums):
        from . import mapped_axes  # Not at the top: adam counts its steps.

        if mapped_axes.are_told():
            axes = tuple(mapped_axes.axes_of(number) for number, _ in sums)
            totals = mapped_axes.tell_axes(_totals, axes)(sums)
        else:
            own = tuple(frozenset((param,)) for param in params or range(len(sums)))
            totals = _totals(own, sums)
        return _starts(totals)
    # In an eager step arrays may lie on different devices. No program takes them all.
    groups: dict[Any, list[int]] = {}
    for place, (number, _) in enumerate(sums):
        groups.setdefault(frozenset(number.devices()), []).append(place)
    starts: dict[int, Any] = {}
    for places in groups.values():
        starts.update(zip(places, _starts_of_all([sums[place] for place in places])))
    return [starts[place] for place in range(len(sums))]


def sums_of(*data: Any) -> Any:
    """Return two numbers that depend on each bit of arrays of floats, and on where it stands.

    The arrays are as wide as float32 or narrower, and broadcast with each other.
    """
    return _sums_of(_has_one_device(), *data)


# Each function is compiled once for a shape: an eager step calls few programs, and a large tree of
# few shapes is traced and compiled fast.
@functools.partial(jax.jit, static_argnums=0)
def _sums_of(one_device: bool, *data: Any) -> Any:
    word: Any = None
    for leaf in data:
        wide = lax.stop_gradient(jnp.asarray(leaf)).astype(jnp.float32)
        bits = lax.bitcast_convert_type(wide, jnp.uint32)
        # All pairs of numbers in half precision give different words.
        word = bits if word is None else (word ^ (word >> 16)) * jnp.uint32(_GOLDEN) + bits
    # Else a change of sign, the upper bit, would not be multiplied: all places would count alike.
    word = (word ^ (word >> 15)) * (_places(word.shape) | 1)
    # Else n equal elements would add up to n times their bits, and lose the upper ones.
    word = word ^ (word >> 15)
    parts, axes = (word, word >> 7), tuple(range(word.ndim))
    # XLA on the CPU stores what a sum adds up, but not what one reduction adds up to two sums. From
    # several devices XLA gathers what such a reduction gives, twice for each array; the sums of all
    # arrays need a single all-reduce. Both give the same numbers.
    if one_device:
        zeros = (jnp.uint32(0),) * 2
        return lax.reduce(parts, zeros, lambda old, new: tuple(map(jnp.add, old, new)), axes)
    return tuple(jnp.sum(part, dtype=jnp.uint32) for part in parts)


def _has_one_device() -> bool:
    """Ask JAX, unless that would start its backend: distributed programs may trace before."""
    xla_bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(xla_bridge, "_backends", True)) and jax.device_count() == 1


def _totals(axes: tuple[frozenset[Any], ...], sums: list[tuple[Any, Any]]) -> list[Any]:
    """Add up for each array its sums, and those of the arrays that vary over no other axes."""
    totals: dict[Any, Any] = {}
    # No constant: a ``cond`` whose branch ``vmap`` chooses would map it, which custom_vmap refuses.
    all_offsets = lax.iota(np.uint32, 2 * len(sums)) * np.uint32(_GOLDEN)
    for own in dict.fromkeys(axes):
        places = [place for place, others in enumerate(axes) if others <= own]
        numbers = [number.reshape(1) for place in places for number in sums[place]]
        offsets = all_offsets
        if len(places) < len(sums):
            offsets = lax.concatenate(
                [lax.slice(all_offsets, (2 * i,), (2 * i + 2,)) for i in places], 0
            )
        hashed = _hash(lax.concatenate(numbers, 0) + offsets)
        totals[own] = jnp.sum(hashed, dtype=jnp.uint32)
    return [totals[own] for own in axes]


def _starts(totals: list[Any]) -> list[Any]:
    def mix_all(starts: list[Any], _: None) -> tuple[list[Any], None]:
        return [_mix(start + total) for start, total in zip(starts, totals)], None

    # XLA would fuse what all arrays share into the program of each: compiling for minutes. It does
    # not fuse a loop, and arrays of one shape then share a program, as they do without rounding.
    numbers = [total * 0 + jnp.uint32(leaf * _GOLDEN % 2**32) for leaf, total in enumerate(totals)]
    return list(lax.scan(mix_all, numbers, None, length=3)[0])


@jax.jit
def _starts_of_all(sums: list[tuple[Any, Any]]) -> list[Any]:
    return _starts(_totals((frozenset(),) * len(sums), sums))


@functools.partial(jax.jit, static_argnums=(1, 2))
def bits_from(start: Any, shape: tuple[int, ...], even: bool = False) -> Any:
    """Return 16 bits for each element of an array, from those of its first.

    Args:
      start: 32 bits, those of the first element.
      shape: of the array.
      even: whether the bits are spread evenly over the array in each single step. Then, of n
        elements that move by a share of a unit, about n times that share do in each step. If none
        did, all data would be the same in the next step, and all elements stay for ever. But a
        moment that moves alike in each step would err to the same side as its neighbours.

    Returns:
      An array of uint16.
    """
    number = _places(shape) + start
    return ((number if even else _mix(number)) >> 16).astype(jnp.uint16)


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


def _mix(number: Any) -> Any:
    return (number ^ (number >> 15)) * jnp.uint32(0x2C1B3C6D)


_GOLDEN = 0x9E3779B1  # 2^32 times the golden ratio - 1, made odd.


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
    within = (block * jnp.uint32(40503) & 0xFFFF) // _PARTS
    return (part + within + (_hash(block >> 4) >> 16) + 2**15).astype(jnp.uint16)


_PARTS = 41


def bits_for(shape: tuple[int, ...], bits: Any) -> Any:
    """Give the bits of a step to an array, or to each row of a stacked state those of its own.

    An array that has no row for each counter is rounded to nearest.
    """
    if not bits.shape:
        return bits
    if shape[: bits.ndim] != bits.shape:
        return jnp.uint16(2**15)
    return bits.reshape(bits.shape + (1,) * (len(shape) - bits.ndim))


def bits_of_elements(number: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """Return 16 bits for each element of arrays of these shapes.

    Rounded alike, all weights of a layer would grow together, and shrink together.

    Args:
      number: an integer, another one in each step.
      shapes: of the arrays.
    """
    number = jnp.asarray(number, jnp.uint32)
    starts = _starts_of_all([(number, number)] * len(shapes)) if shapes else []
    return [bits_from(start, shape) for start, shape in zip(starts, shapes)]
