"""Bits for rounding: from the counters of a state, or else from an element's own data.

With a counter, the elements of a moment have the bits of the step (:func:`bits_of_step`), and
those of a param have these plus a hash of their index (:func:`bits_of_elements`). Over the steps
each goes through all bits as evenly as it can, so one number is as right as many. In the first
steps of a state, params have random bits, and their own data are hashed too. The same counts give
the same bits: in each run and process, eager or compiled, and on any number of devices.

Without one, the bits come from the element's own data, its index, and the corners of its arrays:
all of a small one, else the first row (:func:`bits_of_data`). Nothing then tells two steps apart
that have the same data.

No array has bits of another array. So what is equal on all replicas, or is not mapped by ``vmap``,
stays so. No bits wait for a sum over an array: on an accelerator, that would be a second pass.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .dtypes import has_16_bits


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

    hashed = block * jnp.uint32(_GOLDEN)  # That of the first 41 steps is 0.
    for _ in range(3):
        hashed = hash32(hashed)
    part = ((hashed >> 8) % (_PARTS - 1) + 1) * cube + (hashed >> 20)
    return (part % _PARTS * (2**16 // _PARTS) + within + 2**15).astype(jnp.uint16)


_PARTS = 41
_GOLDEN = 0x9E3779B1  # 2^32 times the golden ratio - 1, made odd.


def bits_for(shape: tuple[int, ...], bits: Any) -> Any:
    """Give the bits of a step to an array, or to each row of a stacked state those of its own.

    An array that has no row for each counter is rounded to nearest.
    """
    if not bits.shape:
        return bits
    if shape[: bits.ndim] != bits.shape:
        return jnp.uint16(2**15)
    return bits.reshape(bits.shape + (1,) * (len(shape) - bits.ndim))


def bits_of_elements(of_step: Any, first: Any, second: Any, shape: tuple[int, ...]) -> Any:
    """Return 16 bits for each element of an array: a hash of its index, plus the bits of a step.

    Args:
      of_step: 16 bits, and above them what the element's own data are multiplied by, or 0.
      first: data of each element, which broadcast to the shape.
      second: likewise.
      shape: of the array.
    """
    own = _both(_own(jnp.broadcast_to(first, shape)), _own(jnp.broadcast_to(second, shape)))
    # ``lax``, not operators: they trace a function each, for each shape of a tree.
    of_step = lax.reshape(lax.convert_element_type(of_step, np.int32), (1,) * len(shape))
    own = lax.mul(own, lax.shift_right_logical(of_step, _like(own, 16)))
    shift = lax.shift_left(of_step, _like(own, 16))
    return upper_bits(lax.add(_mix(lax.add(_places(own), own)), shift))


@jax.jit
def bits_of_data(corner: Any, *own: Any) -> Any:
    """Return 16 bits for each element of an array, from data of its own.

    Args:
      corner: the bits of the corner of an array that changes from step to step.
      *own: data of each element. The first has the shape of the array.
    """
    shape = jnp.shape(own[0])
    bits = functools.reduce(_both, (_own(jnp.broadcast_to(each, shape)) for each in own))
    return upper_bits(_mix(lax.add(bits, _places(bits)) + corner))


@functools.partial(jax.jit, inline=True)
def bits_of_corner(*arrays: Any) -> Any:
    """Return 32 bits of the corners of arrays: of one, or of two in one pass if they are alike."""
    corners = [_own(corner_of(array)) for array in arrays]
    if len({corner.shape for corner in corners}) > 1:
        return functools.reduce(_both, map(bits_of_corner, arrays))
    corner = functools.reduce(_both, corners)
    # Each place has a factor of its own: else few sums are possible where elements move by a unit.
    return jnp.sum(corner * (_places(corner) | 1), dtype=jnp.int32)


def corner_of(array: Any) -> Any:
    """Return the first elements of an array: all of a small one, else the first row.

    A row stays whole: where columns are sharded, XLA would move a part of it for all rows.
    """
    if array.size <= _SMALL:
        return array
    row = array.shape[-1] if array.ndim > 1 else 1024
    return cut(array, (1,) * (array.ndim - 1) + (min(row, _SMALL),))


_SMALL = 2**16


def cut(array: Any, shape: tuple[int, ...]) -> Any:
    """Slice from 0. The operations do not depend on sizes: ``lax.slice`` leaves out a whole one.

    On a mesh with explicit axes JAX refuses to cut what is sharded: there XLA cuts it.
    """

    def sliced(array: Any) -> Any:
        starts = (0,) * array.ndim
        return lax.slice_p.bind(array, start_indices=starts, limit_indices=shape, strides=None)

    sharding = _explicit_sharding(array)
    parts = [*sharding.spec] if sharding else []
    kept = [part if was == now else None for part, was, now in zip(parts, array.shape, shape)]
    if kept == parts:
        return sliced(array)
    auto_axes: Any = getattr(jax.sharding, "auto_axes", None)
    if auto_axes is None:  # Before jax 0.7.
        auto_axes = importlib.import_module("jax.experimental.shard").auto_axes
    mesh = sharding.mesh
    kinds = zip(mesh.axis_names, mesh.axis_types)
    explicit = tuple(name for name, kind in kinds if kind == jax.sharding.AxisType.Explicit)
    of_cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*kept))
    return auto_axes(sliced, axes=explicit, out_sharding=of_cut)(array)


def _explicit_sharding(array: Any) -> Any:
    """Return how an array is sharded on a mesh with explicit axes, of which JAX keeps account."""
    sharding = getattr(array.aval, "sharding", None)  # New in jax 0.5.
    is_explicit = any(part is not None for part in getattr(sharding, "spec", ()))
    return sharding if is_explicit else None


def free_from_device(bits: Any, array: Any) -> Any:
    """Free the bits of a step from the device of the counter: an array may be on another one."""
    traced = isinstance(array, jax.core.Tracer) or isinstance(bits, jax.core.Tracer)
    if traced or jax.local_device_count() == 1:
        return bits
    return np.asarray(bits) if bits.devices() != jnp.asarray(array).devices() else bits


def _own(array: Any) -> Any:
    """Return the bits of each element. XLA may skip a rounding to bfloat16, but not of these."""
    array = lax.stop_gradient(jnp.asarray(array))
    if has_16_bits(array):
        return lax.convert_element_type(lax.bitcast_convert_type(array, np.uint16), np.int32)
    return lax.bitcast_convert_type(lax.convert_element_type(array, np.float32), np.int32)


def _both(first: Any, second: Any) -> Any:
    return lax.bitwise_xor(lax.shift_left(first, _like(first, 16)), second)


def _places(array: Any) -> Any:
    """Return multiples of the golden ratio by the index of each element, sharded as the array."""
    shape, sharding = array.shape, _explicit_sharding(array)
    sharded = {"out_sharding": sharding} if sharding else {}
    step, numbers = _GOLDEN, []
    for axis in reversed(range(len(shape))):
        index = lax.broadcasted_iota(np.int32, shape, axis, **sharded)
        numbers.append(lax.mul(index, _like(index, step)))
        step *= shape[axis]
    return functools.reduce(lax.add, numbers) if numbers else np.int32(0)


def _like(array: Any, number: int) -> Any:
    """Return a number that ``lax`` broadcasts to the shape of an array."""
    return np.full((1,) * array.ndim, _int32(number))


def _int32(number: int) -> Any:
    return np.uint32(number % 2**32).astype(np.int32)


def hash32(number: Any) -> Any:
    """Hash uint32 (the constants: https://github.com/skeeto/hash-prospector)."""
    number = (number ^ (number >> 16)) * jnp.uint32(0x7FEB352D)
    number = (number ^ (number >> 15)) * jnp.uint32(0x846CA68B)
    return number ^ (number >> 16)


def _mix(number: Any) -> Any:
    """Spread all bits over the upper 16, in few operations: XLA compiles them for each array."""
    shifted = lax.shift_right_arithmetic(number, _like(number, 13))
    return lax.mul(lax.bitwise_xor(number, shifted), _like(number, 0x2C1B3C6D))


def upper_bits(number: Any) -> Any:
    """Return the upper 16 bits, as a number that is not negative."""
    return lax.shift_right_logical(number, _like(number, 16))
