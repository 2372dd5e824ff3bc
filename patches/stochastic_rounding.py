"""stochastic_rounding: params in half precision are rounded so that small updates count.

bfloat16 has 8 bits. Stock rounds params + updates to nearest, so a param of 1 does not move by less
than 0.002, nor an average of weights by a small share of the distance. Here the sum is computed in
float32, and rounded up or down, each as likely as it is near: the param is right on average. What
is exact stays: frozen params, zero updates and the updates of ``master_weights``. A sum of float16
stays finite; one of bfloat16 may become infinite from 3.38e38 on, as on stock. float32 and wider
params, integers and complex numbers are stock's, and so is the derivative.

There is no key and no state. If the state of the optimizer counts its steps, ``update`` notes that
count for the arrays that it returns, by identity. ``apply_updates`` rounds each element by the
count and the element's index: over the steps, evenly. A number alone is as right as many. In the
first 164 steps of a state the bits are random, from the element's own param and update as well:
else a new state for each task would round in the same way each time. The bits cost no second pass
and no message between devices. They are the same in each run, eager or compiled, on any number of
devices.

If nothing counts, the bits are a hash of each element's own param and update, its index, and the
first elements of the param and the gradient. That is so for ``sgd``, ``rmsprop`` and others with a
constant rate, if ``update`` and ``apply_updates`` are jitted apart, and for updates that you change
in between.
Noisy steps are right on average there, too. But where a step repeats exactly, a param that did not
move stays for ever. Use ``master_weights(tx)``, or a schedule as the rate, which counts.

flax (``TrainState``, ``nnx.Optimizer``) calls ``optax.apply_updates``. ``equinox.apply_updates``
and ``jaxopt.OptaxSolver`` do not, so both are patched too, if the program imports them.
``periodic_update`` copies, and ``tree.add_scale`` is arithmetic on any trees: both are stock's.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.bits import (
    bits_of_corner,
    bits_of_data,
    bits_of_elements,
    free_from_device,
)
from .._contract.dtypes import (
    REAL,
    PyTree,
    cast,
    has_16_bits,
    is_array,
    is_inexact,
    is_number,
    kind_of,
)
from .._contract.rounding import round_stochastically
from .._contract.steps import note_bits, take_bits
from .._engine.patch import Stock


def apply_updates(stock: Stock, params: PyTree, updates: PyTree) -> PyTree:
    """Round the sums of params in half precision and updates."""
    return _by_leaf(stock, _Rounded(_is_sum, _sum, _of_second), params, updates)


def apply_to_model(stock: Stock, model: PyTree, updates: PyTree) -> PyTree:
    """Round the sums of arrays in half precision and updates, as equinox adds them.

    An update of None stands for a part of the model that stays: an array, a function, a layer.
    """

    def is_sum(part: Any, update: Any) -> bool:
        in_jax = isinstance(part, jax.Array) and has_16_bits(part)
        return in_jax and _promoted(part, update) == part.dtype

    if not any(map(has_16_bits, jax.tree_util.tree_leaves(model))):
        return stock(model, updates)
    structure: Any
    flat, structure = jax.tree_util.tree_flatten(updates, is_leaf=lambda leaf: leaf is None)
    try:
        parts = structure.flatten_up_to(model)
    except (TypeError, ValueError):
        return stock(model, updates)  # The error is stock's.
    moving = [None if update is None else part for part, update in zip(parts, flat)]
    moved = _by_leaf(stock, _Rounded(is_sum, _sum, _of_second), moving, flat)
    rows = zip(parts, flat, moved)
    return structure.unflatten(part if update is None else new for part, update, new in rows)


def apply_in_solver(stock: Stock, solver: Any, params: PyTree, updates: PyTree) -> PyTree:
    """Round the sums of params in half precision and updates, as jaxopt's solver adds them."""
    return apply_updates(functools.partial(stock, solver), params, updates)


def incremental_update(
    stock: Stock, new_tensors: PyTree, old_tensors: PyTree, step_size: Any
) -> PyTree:
    """Round averages in half precision."""

    def is_average(new: Any, old: Any) -> bool:
        # NumPy has promotion rules of its own.
        of_numpy = isinstance(step_size, (np.ndarray, np.generic))
        of_jax = isinstance(new, jax.Array) and isinstance(old, jax.Array) and not of_numpy
        halves = of_jax and has_16_bits(new) and has_16_bits(old)
        return halves and _promoted(step_size, new, old) == old.dtype

    def stock_of(new: PyTree, old: PyTree) -> PyTree:
        return stock(new, old, step_size)

    # New params that ``apply_updates`` returned are of its step.
    how = _Rounded(is_average, _average, _of_first)
    return _by_leaf(stock_of, how, new_tensors, old_tensors, step_size)


def _is_sum(param: Any, update: Any) -> bool:
    """Check for a param in half precision, and an update that makes the sum a real number."""
    return is_array(param) and has_16_bits(param) and kind_of(_promoted(param, update)) == REAL


def _promoted(*given: Any) -> Any:
    """Return the dtype that JAX gives to numbers together; float0 where stock raises an error."""
    try:
        np.broadcast_shapes(*map(np.shape, given))
        if all(is_array(number) or is_number(number) for number in given):
            return jnp.result_type(*given)
    except (TypeError, ValueError):  # It promotes no float8.
        pass
    return jax.dtypes.float0


class _Rounded(NamedTuple):
    """How a function of two leaves is rounded.

    Attributes:
      is_rounded: whether the result for a pair is in half precision; stock computes the others.
      exact: computes the result for a pair, and for more arguments, in float32.
      of_step: returns the leaf of a pair that may be noted with the step that it is of.
    """

    is_rounded: Callable[[Any, Any], bool]
    exact: Callable[..., Any]
    of_step: Callable[[tuple[Any, Any]], Any]


_of_first, _of_second = operator.itemgetter(0), operator.itemgetter(1)


def _by_leaf(stock: Stock, how: _Rounded, first: PyTree, second: PyTree, *args: Any) -> PyTree:
    """Round what a function gives for some pairs of leaves."""
    structure: Any
    flat, structure = jax.tree_util.tree_flatten(first, is_leaf=lambda leaf: leaf is None)
    if not any(map(has_16_bits, flat)):
        return stock(first, second)
    try:
        pairs = list(zip(flat, structure.flatten_up_to(second)))
    except (TypeError, ValueError):
        return stock(first, second)  # Trees of different structure: the error is stock's.
    places = [place for place, pair in enumerate(pairs) if how.is_rounded(*pair)]
    others = [place for place in range(len(pairs)) if place not in set(places)]
    results: dict[int, Any] = {}
    if others:  # In lists: a user's node need not accept leaves of other nodes.
        columns = zip(*(pairs[place] for place in others))
        results.update(zip(others, stock(*map(list, columns))))
    for place in places:
        pair = pairs[place]
        bits = take_bits(how.of_step(pair))
        if bits is None or is_inexact(bits):  # Nothing counts.
            bits = bits_of_corner(pair[0], pair[1] if bits is None else bits)
        results[place] = _rounded(how.exact, free_from_device(bits, pair[0]), *pair, *args)
        note_bits([results[place]], bits)
    return structure.unflatten(results[place] for place in range(len(pairs)))


# Compiled once for arrays of one shape.
@functools.partial(jax.jit, static_argnums=0)
def _rounded(exact: Callable[..., Any], of_step: Any, first: Any, second: Any, *args: Any) -> Any:
    number = exact(first, second, *args)
    if of_step.dtype == jnp.uint32:  # Of counters.
        bits = bits_of_elements(of_step, first, second, number.shape)
    else:
        bits = bits_of_data(of_step, jnp.broadcast_to(first, number.shape), second)
    return round_stochastically(number, jnp.asarray(first).dtype, bits)


def _sum(param: Any, update: Any) -> Any:
    return cast(param, jnp.float32) + cast(update, jnp.float32)


def _average(new: Any, old: Any, share: Any) -> Any:
    wide, before = cast(new, jnp.float32), cast(old, jnp.float32)
    share = cast(share, jnp.float32)
    average = share * wide + (1.0 - share) * before
    # That of equal numbers may be off by float32's own rounding. To add -0 changes nothing.
    is_off = (new == old) & jnp.isfinite(before) & (average != before)
    right, wrong = jnp.where(is_off, before, -0.0), jnp.where(is_off, average, 0.0)
    return average + jax.lax.stop_gradient(right - wrong)
