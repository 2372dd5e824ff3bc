"""Remember which step updates are of: what rounds params has no state that counts.

An update notes the bits of its step with each array that it returns, by identity and weakly. No
update lives longer for that, and nothing is in the arrays: they may be tracers. Where nothing
counts, a small gradient lives as long as its update.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .bits import bits_of_step, corner_of, hash32
from .dtypes import HALVES, PyTree, all_dtypes, is_deleted, is_real, leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

_Note = tuple["weakref.ref[Any]", Any]


class _Notes(threading.local):
    """The arrays that updates of this thread returned, by id, with the bits of their steps."""

    def __init__(self) -> None:
        self.by_id: dict[int, _Note] = {}


_NOTES = _Notes()

_IN_CIRCLES = ("ApplyEvery", "ReduceLROnPlateauState")
"""States whose counters start again: they do not tell steps apart."""

_HALVES = frozenset(HALVES)

_ON_HOST = (np.ndarray, np.generic)
"""What counts in a state that was restored, perhaps."""

_COUNTERS = ("count", "t", "step", "step_count", "gradient_step")


@contextlib.contextmanager
def counted(state: PyTree, given: PyTree) -> Iterator[bool]:
    """Lend the counters of a state to the states inside it that do not count, for one step.

    Args:
      state: of the transformation that takes the step.
      given: all trees that the step is given.

    Yields:
      Whether the step is the outermost, which notes what its updates are of.
    """
    around, own = _OUTERMOST.get(), traces_of(given)
    if around and (not own or own <= traces_of(around[1])):
        yield False
        return
    token = _OUTERMOST.set((state, given))
    try:
        yield True
    finally:
        _OUTERMOST.reset(token)


_OUTERMOST: contextvars.ContextVar[tuple[PyTree, PyTree] | None] = contextvars.ContextVar(
    "outermost", default=None
)
"""The state that takes a step in this thread, and all trees that the step is given."""


def bits_of_outermost(given: PyTree) -> Any:
    """Return the 16 bits of the step that is being taken; None if nothing counts it.

    Not where the user's code inside traces them for itself: ``jax.jit`` would keep these
    bits for all later steps.
    """
    around = _OUTERMOST.get()
    if around is None or not traces_of(given) <= traces_of(around[1]):
        return None
    counters = counters_in(around[0])
    return bits_of_counters(counters).astype(jnp.uint16) if counters else None


def traces_of(tree: PyTree) -> set[int]:
    """Return the ids of the traces that the leaves are part of."""
    tracers = [leaf for leaf in leaves(tree) if isinstance(leaf, jax.core.Tracer)]
    # Old versions have the attribute ``main``.
    return {id(getattr(x._trace, "main", x._trace)) for x in tracers} if tracers else set()


def note(updates: PyTree, grads: PyTree, state: PyTree, params: PyTree) -> None:
    """Note the bits of the step that updates are of.

    Where nothing counts, note the corner of each gradient, from which they come. An update's own
    corner would do as well, but XLA would store the update to read it twice.

    Args:
      updates: of any dtypes.
      grads: as they were given.
      state: before the step, of the transformation that the user calls, with all others inside.
      params: as they were given, or None.
    """
    if _HALVES.isdisjoint(all_dtypes((updates, params))):
        return
    _forget_failed_traces()
    flat, counters = leaves(updates), counters_in(state)
    if counters:
        note_bits(flat, bits_for_params(counters))
        return
    given = leaves(grads)
    own = set(map(id, given))  # A note of a gradient on itself would never go.
    for update, grad in zip(flat, given if len(given) == len(flat) else ()):
        is_told = isinstance(grad, jax.Array) and is_real(grad) and not is_deleted(grad)
        if is_told and id(update) not in own:
            note_bits([update], corner_of(grad))


def note_bits(arrays: list[Any], bits: Any) -> None:
    """Note what tells the step of arrays: 16 bits of counters, 32 of corners, or a corner."""
    notes = _NOTES.by_id
    if isinstance(bits, jax.core.Tracer):
        # Not one that the step was given, or that a map around the step does not map.
        own = traces_of(bits), axes_of(bits)
        arrays = [x for x in arrays if own[0] <= traces_of(x) and own[1] <= axes_of(x)]
    for array in arrays:
        if isinstance(array, jax.Array):
            # No function of ours: it runs for each array of each eager step.
            forget = functools.partial(notes.pop, id(array))
            notes[id(array)] = weakref.ref(array, forget), bits


def take_bits(array: Any) -> Any:
    """Return the bits of the step that an array is of; None if no step is noted.

    They are used once: an array that is used again would be rounded in the same way each time.
    """
    found = _NOTES.by_id.pop(id(array), None)
    if not found or found[0]() is not array or is_deleted(found[1]):
        return None
    return found[1]


def is_noted(array: Any) -> bool:
    """Check whether the step that an array is of is noted."""
    found = _NOTES.by_id.get(id(array))
    return found is not None and found[0]() is array


def axes_of(number: Any) -> frozenset[Any]:
    """Return the mapped axes on which a number depends, as ``jax.shard_map`` checks it."""
    aval: Any = getattr(number, "aval", None)
    if hasattr(aval, "manual_axis_type"):
        return frozenset(aval.manual_axis_type.varying)
    return frozenset(getattr(aval, "vma", ()))  # Before jax 0.10.


def _forget_failed_traces() -> None:
    """Forget the notes of traces that an exception ended, when the next trace begins.

    Since jax 0.4.36 such a trace holds its tracers. The bits of a note hold the trace.
    """
    core: Any = sys.modules.get("jax._src.core")
    outermost = getattr(core, "eval_trace", None)
    if outermost is None or not _NOTES.by_id:
        return
    trace = core.trace_ctx.trace
    if getattr(trace, "parent_trace", None) is outermost:  # No other trace is going on.
        for key, (_, bits) in [*_NOTES.by_id.items()]:
            if getattr(bits, "_trace", trace) is not trace:
                del _NOTES.by_id[key]


def counters_in(state: PyTree) -> list[Any]:
    """List what counts the steps in the states of optax, also inside others.

    A state of the user's may count in circles, and is left out. Arrays of an eager step may lie on
    different devices: the list has those on the devices of the first.
    """
    found, nodes = [], [state]
    for node in nodes:
        kind: Any = type(node)
        if not (isinstance(node, tuple) and hasattr(kind, "_fields")):
            parts = node.values() if isinstance(node, dict) else node
            nodes += parts if isinstance(node, (dict, list, tuple)) else ()
            continue
        counts = kind.__module__.partition(".")[0] == "optax" and kind.__name__ not in _IN_CIRCLES
        for name, part in zip(kind._fields, node):
            if not (counts and name in _COUNTERS):
                nodes.append(part)
            elif isinstance(part, (jax.Array, *_ON_HOST)) and part.ndim == 0:
                found += [part] if part.dtype.kind in "iu" and not is_deleted(part) else []
    on_devices = [x for x in found if not isinstance(x, (jax.core.Tracer, *_ON_HOST))]
    if len(on_devices) < 2 or jax.local_device_count() == 1:
        return found
    return [x for x in on_devices if x.devices() == on_devices[0].devices()]


@jax.jit
def bits_of_counters(counters: list[Any]) -> Any:
    """Return the 16 bits of a step, and above them 1 in the first steps of a state.

    The largest counter leads. Counters that move with it are at a constant distance, which shifts
    the bits. Where one stands still, the distance moves: bits differ in each step, less evenly.
    """
    counts = [jnp.asarray(each, jnp.uint32) for each in counters]
    most = functools.reduce(jnp.maximum, counts)
    behind = sum((most - each for each in counts[1:]), most - counts[0])
    bits = bits_of_step(most) + (behind * np.uint32(40503)).astype(jnp.uint16)
    is_new = (most < _NEW).astype(jnp.uint32)
    return bits.astype(jnp.uint32) | (is_new << 16)


@jax.jit
def bits_for_params(counters: list[Any]) -> Any:
    """Return the bits of a step for params: those of :func:`bits_of_counters`, but for new states.

    There an element's own data count, which are others after each move. Beside even bits, it would
    then wait half as long as it should for the next one. So each step has random bits, and above
    them an odd number, by which the data are multiplied.
    """
    bits = bits_of_counters(counters)
    return jnp.where(bits < 2**16, bits, hash32(bits) | 2**16)


_NEW = 164
"""Steps in which an element's own data count too. Else a state that starts again, as for each task,
would round in the same way each time."""
