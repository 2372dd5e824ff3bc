"""Bits for rounding: from the counter of a state, or else from the data of a step.

Counters (:func:`bits_of_step`) tell all steps apart, and give the same bits in each run and on any
number of devices. All moments of a step have the same 16 bits, and go through them as evenly as
they can.

Without a counter, bits come from a sample of the step's own data (:func:`starts_of`): params and
updates, or moments and gradients. A hash of the sample is added up, and says where the bits of the
first element start. From there the elements of all arrays go on by multiples of the golden ratio.

What bits of data guarantee:

- The same data give the same bits: in each run and process, eager or compiled, and, since sums of
  integers do not depend on their order, on any number of devices. Under vmap each member has bits
  of its own data, and under ``shard_map`` each shard. What is equal on all replicas stays so: no
  array has bits of one that varies over more mapped axes.
- Any change in the sample gives all elements other bits. Each array has an equal share of 16384
  elements. Of an array that fits its share the sample has all, of another one some elements, at
  least four along each axis.
- All bits are equally likely over steps. Nothing tells two steps with the same data apart: a single
  element that is rounded to where it was, and moves by the same amount again, stays for ever.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Sequence


def starts_of(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return for each row the bits of its first element, 32 of them, from a sample of all rows.

    What is equal on all replicas must stay so. So no row gives its data to one that varies over
    fewer mapped axes. Where JAX does not say what varies, as inside ``pmap`` and
    ``shard_map(check_vma=False)``, a row has bits of its own data alone.

    Args:
      rows: for each param the arrays that decide, of any dtype. The first has its shape.
    """
    if not rows:
        return []
    rows = [list(map(lax.stop_gradient, row)) for row in rows]
    if any(isinstance(array, jax.core.Tracer) for row in rows for array in row):
        from . import mapped_axes  # Not at the top: adam counts its steps.

        if mapped_axes.are_told():
            axes = tuple(frozenset().union(*map(mapped_axes.axes_of, row)) for row in rows)
            return list(mapped_axes.tell_axes(_starts_of_all, axes)(rows))
        return _starts_of_all(tuple(frozenset((place,)) for place in range(len(rows))), rows)
    # In an eager step arrays may lie on different devices. No program takes them all.
    groups: dict[Any, list[int]] = {}
    for place, row in enumerate(rows):
        devices = [x.devices() for x in row if isinstance(x, jax.Array)]
        groups.setdefault(frozenset().union(*devices), []).append(place)
    starts: dict[int, Any] = {}
    for places in groups.values():
        axes = (frozenset[Any](),) * len(places)
        starts.update(zip(places, _eager_starts(axes, [rows[place] for place in places])))
    return [starts[place] for place in range(len(rows))]


def _starts_of_all(axes: tuple[frozenset[Any], ...], rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Start each row by its data, and those of the rows that vary over no other axes."""
    totals = {
        own: _total([array for row, others in zip(rows, axes) if others <= own for array in row])
        for own in dict.fromkeys(axes)
    }
    return _starts([totals[own] for own in axes], [np.shape(row[0]) for row in rows])


_eager_starts = jax.jit(_starts_of_all, static_argnums=0)


def _total(arrays: Sequence[Any]) -> Any:
    """Add up the hashes of a sample of all arrays, and of where each element stands in it."""
    groups: dict[int, list[tuple[Any, tuple[int, ...]]]] = {}
    for array in arrays:
        strides = _strides(np.shape(array), len(arrays))
        size = math.prod(-(-n // step) for n, step in zip(np.shape(array), strides))
        groups.setdefault(size, []).append((array, strides))
    # Few instructions for each array: a tree of hundreds compiles fast.
    total = _total_of_joined if _has_one_device() else _total_of_each
    of_arrays = lax.concatenate([total(group) for group in groups.values()], 0)
    return jnp.sum(_hash_of(of_arrays, lax.iota(np.uint32, len(arrays))), dtype=jnp.uint32)


def _total_of_joined(group: Sequence[tuple[Any, tuple[int, ...]]]) -> Any:
    """Add up the hashes of each array, all of which have samples of one size."""
    sampled = [
        lax.slice(jnp.asarray(array), (0,) * np.ndim(array), np.shape(array), strides)
        for array, strides in group
    ]
    joined = lax.concatenate([each.astype(jnp.float32).reshape(1, -1) for each in sampled], 0)
    hashed = _hash_of(joined, lax.broadcasted_iota(np.uint32, joined.shape, 1))
    return jnp.sum(hashed, 1, dtype=jnp.uint32)


def _total_of_each(group: Sequence[tuple[Any, tuple[int, ...]]]) -> Any:
    """Return the same. Each device adds up its part: XLA would gather what is joined."""
    return jnp.stack([_total_of_one(array, strides) for array, strides in group])


def _strides(shape: tuple[int, ...], arrays: int) -> tuple[int, ...]:
    """Choose each n-th element along each axis, so that the sample of all arrays is small."""
    each = _SAMPLE / arrays
    if math.prod(shape) <= each:
        return (1,) * len(shape)
    return tuple(max(1, size // max(4, int(each ** (1 / len(shape))))) for size in shape)


_SAMPLE = 2**14


@functools.partial(jax.jit, static_argnums=1)  # Compiled once for arrays of one shape.
def _total_of_one(array: Any, strides: tuple[int, ...]) -> Any:
    array = jnp.asarray(array)
    place, is_sampled = jnp.uint32(0), jnp.bool_(True)
    below = 1
    for axis in reversed(range(array.ndim)):
        index = lax.broadcasted_iota(np.uint32, array.shape, axis)
        is_sampled = is_sampled & (index % strides[axis] == 0)
        place = place + index // strides[axis] * np.uint32(below)
        below *= -(-array.shape[axis] // strides[axis])
    hashed = _hash_of(array.astype(jnp.float32), place)
    return jnp.sum(jnp.where(is_sampled, hashed, 0), dtype=jnp.uint32)


def _has_one_device() -> bool:
    """Ask JAX, unless that would start its backend: distributed programs may trace before."""
    xla_bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(xla_bridge, "_backends", True)) and jax.device_count() == 1


def _starts(totals: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Let each array start where another one ends: the bits of a step are even over all arrays.

    The first arrays of each shape stand first, then the second ones. So arrays of one shape are as
    far apart as those of any other, and a loop of few numbers serves all shapes.
    """
    sizes = {shape: _steps(shape)[1] for shape in shapes}
    times = Counter(shapes)
    ordered = [shape for shape, _ in times.most_common()]  # So that no place stays free.
    within = dict(zip(ordered, itertools.accumulate((sizes[s] for s in ordered), initial=0)))
    rounds = range(max(times.values()))
    firsts = list(
        itertools.accumulate(
            (sum(sizes[s] for s in ordered if times[s] > turn) for turn in rounds), initial=0
        )
    )
    seen: Counter[tuple[int, ...]] = Counter()
    unique: dict[int, int] = {}
    shared, keys = {}, []
    for total, shape in zip(totals, shapes):
        key = unique.setdefault(id(total), len(unique)), seen[shape]
        seen[shape] += 1
        keys.append(key)
        if key not in shared:
            shared[key] = total * 0 + jnp.uint32(firsts[key[1]] * _GOLDEN % 2**32)

    def mix(carry: Any, _: None) -> tuple[Any, None]:
        mixed, starts = carry
        moved = {key: start + mixed[key[0]] for key, start in starts.items()}
        return (list(map(_mix, mixed)), moved), None

    by_id = {id(total): total for total in totals}
    _, starts = _behind_a_loop(mix, ([by_id[name] for name in unique], shared))
    return [
        lax.add(starts[key], np.uint32(within[shape] * _GOLDEN % 2**32))
        for key, shape in zip(keys, shapes)
    ]


@functools.partial(jax.jit, static_argnums=(1, 2))
def bits_from(start: Any, shape: tuple[int, ...], even: bool = False) -> Any:
    """Return 16 bits for each element of an array, from those of its first.

    Args:
      start: 32 bits, those of the first element.
      shape: of the array.
      even: whether the bits are spread evenly in each single step, over all arrays whose starts
        come from one call of :func:`starts_of`. Then, of n elements that move by a share of a unit,
        about n times that share do in each step. If none did, all data would be the same in the
        next step, and all elements stay for ever. But a moment that moves alike in each step would
        err to the same side as its neighbours.

    Returns:
      An array of uint32, of which the upper 16 bits count.
    """
    number = start
    for axis, step in enumerate(_steps(shape)[0]):
        places = lax.broadcasted_iota(jnp.uint32, shape, axis)
        number = number + places * jnp.uint32(step * _GOLDEN % 2**32)
    return number if even else _mix(number)


def own_bits(array: Any) -> Any:
    """Return bits that tell an element from itself in other steps; equal elements have the same."""
    wide = lax.stop_gradient(jnp.asarray(array)).astype(jnp.float32)
    return lax.bitcast_convert_type(wide, jnp.uint32) * jnp.uint32(_ODD)


@functools.cache
def _steps(shape: tuple[int, ...]) -> tuple[list[int], int]:
    """Return the step of places along each axis of an array, and the first place after it.

    Multiples of the golden ratio are as even as numbers can be, over any range of places. But where
    such a multiple is nearly an integer, as that of 144, rows of 144 would be rounded alike. There
    a row leaves one place or two free.
    """
    steps, step = [], 1
    for size in reversed(shape):
        while step > 1 and not 0.1 < step * _GOLDEN / 2**32 % 1 < 0.9:
            step += 1
        steps.append(step)
        step *= size
    return steps[::-1], step


def _hash(number: Any) -> Any:
    """Hash uint32 (the constants: https://github.com/skeeto/hash-prospector)."""
    number = (number ^ (number >> 16)) * jnp.uint32(0x7FEB352D)
    number = (number ^ (number >> 15)) * jnp.uint32(0x846CA68B)
    return number ^ (number >> 16)


def _hash_of(number: Any, place: Any) -> Any:
    """Hash 32 bits and where they stand."""
    return _hash(lax.bitcast_convert_type(number, jnp.uint32) + place * np.uint32(_GOLDEN))


def _mix(number: Any) -> Any:
    return (number ^ (number >> 15)) * jnp.uint32(0x2C1B3C6D)


_ODD = 0x85EBCA6B
_GOLDEN = 0x9E3779B1  # 2^32 times the golden ratio - 1, made odd.


@jax.jit
def bits_of_step(count: Any) -> Any:
    """Return 16 bits for a step, those of a half for step 0.

    41 steps visit each of 41 equal parts once, so that slow moves add up evenly. Their order is
    a n^3 + c modulo 41, and a and c are others in the next 41 steps: no period of the gradients
    locks to that. (Multiples of the golden ratio lock to periods of few steps, and one order for
    all times to 41 batches in an epoch: updates are 8 to 17 % off.)
    """
    count = jnp.asarray(count, jnp.uint32)
    turn, block = count % _PARTS, count // _PARTS
    cube, within = turn * turn * turn, (block * jnp.uint32(40503) & 0xFFFF) // _PARTS

    def mix(carry: Any, _: None) -> tuple[Any, None]:
        hashed = _hash(carry[0])
        part = ((hashed >> 8) % (_PARTS - 1) + 1) * cube + (hashed >> 20)
        bits = part % _PARTS * (2**16 // _PARTS) + within + 2**15
        return (hashed, bits.astype(jnp.uint16)), None

    # The first 41 steps begin with that of a half: a hash of 0 is 0.
    return _behind_a_loop(mix, (block * jnp.uint32(_GOLDEN), block.astype(jnp.uint16)))[1]


_PARTS = 41


def _behind_a_loop(mix: Callable[[Any, None], tuple[Any, None]], carry: Any) -> Any:
    """Mix bits that all arrays share three times.

    XLA would fuse what all arrays share into the program of each, and compile that as often. It
    does not fuse a loop. Arrays of one shape then share a program, as they do without rounding.
    """
    return lax.scan(mix, carry, None, length=3)[0]


def bits_for(shape: tuple[int, ...], bits: Any) -> Any:
    """Give the bits of a step to an array, or to each row of a stacked state those of its own.

    An array that has no row for each counter is rounded to nearest.
    """
    if not bits.shape:
        return bits
    if shape[: bits.ndim] != bits.shape:
        return jnp.uint16(2**15)
    return bits.reshape(bits.shape + (1,) * (len(shape) - bits.ndim))
