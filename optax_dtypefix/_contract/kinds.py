"""Start a state in the kind of number that it will hold (C1)."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp

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
    from .trace import trace_state  # Few programs need it.

    after = trace_state(update, params, state, params)
    if after is None or len(after) != len(leaves(state)):
        return state
    double = any(
        kind_of(dtype_of(leaf)) >= REAL and jnp.finfo(dtype_of(leaf)).bits == 64
        for leaf in leaves((params, state))
        if is_number(leaf)
    )
    started = (_start(leaf, new.dtype, double=double) for leaf, new in zip(leaves(state), after))
    return unflatten_like(state, started)


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
    reals = all(kind_of(dtype_of(leaf)) == REAL for leaf in leaves(params))
    return not reals or any(map(_may_hold_a_mean, leaves(state)))


def _may_hold_a_mean(leaf: Any) -> bool:
    """Check for integers that are neither a counter nor a random key; optax's states have none."""
    signed = is_number(leaf) and jnp.issubdtype(dtype_of(leaf), jnp.signedinteger)
    return bool(signed) and not (isinstance(leaf, jax.Array) and leaf.ndim == 0)
