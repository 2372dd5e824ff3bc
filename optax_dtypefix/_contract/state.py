"""Fit the state after a step to the dtypes of the state before it."""

from __future__ import annotations

from typing import Any

import jax

from .dtypes import (
    REAL,
    PyTree,
    all_dtypes,
    cast,
    dtype_of,
    have_same_dtypes,
    is_half_dtype,
    is_jax_array,
    is_none,
    is_number,
    is_weak,
    kind_of,
    leaves_and_none,
    may_cast,
)
from .moments import round_moments
from .rounding import round_leaf


def cast_back(new: PyTree, old: PyTree, grads: PyTree = None) -> PyTree:
    """Cast a new state back to the dtypes of the old one, so that the state fits into a loop.

    A leaf stays within its kind of number: a float is never cast to an integer, nor a complex
    number to a real one. Such a leaf is returned unchanged, and so is a tree of another structure:
    JAX reports both where they matter. Where a param is frozen, either state may have None.

    Args:
      new: the state after a step.
      old: the state before that step.
      grads: of the step: they tell steps apart where a state does not count.

    Returns:
      The new state. Moments that become narrower are rounded as ``ROUNDINGS`` says.
    """
    if have_same_dtypes(new, old):
        return new
    structure: Any = jax.tree_util.tree_structure(new, is_leaf=is_none)
    if structure != jax.tree_util.tree_structure(old, is_leaf=is_none):
        return new
    if any(map(is_half_dtype, all_dtypes(old))):
        new = round_moments(new, old, grads)
    return structure.unflatten(map(cast_leaf_back, leaves_and_none(new), leaves_and_none(old)))


def cast_leaf_back(leaf: Any, before: Any) -> Any:
    """Cast a leaf back to its dtype before the step, within its kind of number."""
    aval = getattr(leaf, "aval", None)
    if aval is not None and not aval.weak_type and aval.dtype == getattr(before, "dtype", None):
        return leaf  # Most often, and for each leaf of each step.
    # State of a user-defined transformation may be host values, which are left alone.
    on_host = not (is_jax_array(leaf) or is_jax_array(before))
    if on_host or not (is_number(leaf) and is_number(before)):
        return leaf
    was, now = dtype_of(before), dtype_of(leaf)
    if was == now and is_weak(leaf) and is_weak(before):
        return leaf
    narrow = round_leaf if kind_of(now) == REAL else cast
    return narrow(leaf, was if may_cast(now, was) else now)
