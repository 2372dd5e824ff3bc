"""Start a state in the kind of number that it will hold (C1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp

from .._tally import paused
from .dtypes import (
    COMPLEX,
    REAL,
    PyTree,
    cast,
    dtype_of,
    is_number,
    kind_of,
    leaves,
    unflatten_like,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def promote_initial_state(update: Callable[..., Any], state: PyTree, params: PyTree) -> PyTree:
    """Start each leaf of a state in the kind of number that one step makes of it.

    A moment of an integer param starts as an integer 0, and the first step makes it a float. To
    cast that float back would lose the value; to leave it would change the state. If the step
    cannot be traced, because it needs more arguments, the state is returned unchanged.

    Args:
      update: of the transformation: takes gradients, state and params; returns the state second.
      state: from ``init``.
      params: arrays or ``jax.ShapeDtypeStruct``.
    """
    if not _may_change_kind(state, params):
        return state
    after = after_a_step(update, state, params)
    if after is None:
        return state
    double = any(
        kind_of(dtype_of(leaf)) >= REAL and jnp.finfo(dtype_of(leaf)).bits == 64
        for leaf in leaves((params, state))
        if is_number(leaf)
    )
    started = (_start(leaf, new.dtype, double=double) for leaf, new in zip(leaves(state), after))
    return unflatten_like(state, started)


def after_a_step(update: Callable[..., Any], state: PyTree, params: PyTree) -> list[Any] | None:
    """List the leaves of the state after one step, abstractly, with gradients like the params.

    Return None if the step cannot be traced, or changes the structure of the state.
    """
    structures: list[Any] = []

    def step(params: PyTree, state: PyTree) -> list[Any]:
        new_state = update(params, state, params)[1]
        structures.append(jax.tree_util.tree_structure(new_state))
        return leaves(new_state)

    try:
        with paused():
            after: list[Any] = jax.eval_shape(step, params, state)
    except Exception:  # The user's call of update will raise too, if this is an error there.
        return None
    return after if structures[0] == jax.tree_util.tree_structure(state) else None


def _start(leaf: Any, after: Any, *, double: bool) -> Any:
    if not is_number(leaf) or kind_of(after) <= kind_of(dtype_of(leaf)):
        return leaf
    if kind_of(after) >= REAL and not double and jnp.finfo(after).bits == 64:  # By 64-bit mode.
        after = jnp.complex64 if kind_of(after) == COMPLEX else jnp.float32
    return cast(leaf, after)


def _may_change_kind(state: PyTree, params: PyTree) -> bool:
    """Check whether a step may change a kind; with real params and optax's states it does not.

    To trace a step that may not is to call the user's code once more than stock does.
    """
    if any(kind_of(dtype_of(leaf)) != REAL for leaf in leaves(params)):
        return True
    return any(
        is_number(leaf) and kind_of(dtype_of(leaf)) < REAL and not _counts(leaf)
        for leaf in _user_defined(state)
    )


def _counts(leaf: Any) -> bool:
    """Check for a counter, a flag or a random key: an array that is not meant to hold a mean."""
    unsigned = jnp.issubdtype(dtype_of(leaf), jnp.unsignedinteger)
    return isinstance(leaf, jax.Array) and bool(leaf.ndim == 0 or unsigned)


def _user_defined(node: Any, *, trusted: bool = False) -> Iterator[Any]:
    """Walk the leaves of a state that are not fields of one of optax's own classes."""
    if hasattr(node, "_fields"):
        trusted = type(node).__module__.partition(".")[0] == "optax"
    elif isinstance(node, dict):
        node = node.values()
    elif not isinstance(node, (tuple, list)):
        if not trusted:
            yield from leaves(node)
        return
    for child in node:
        yield from _user_defined(child, trusted=trusted)
