"""Fit the state after a step to the dtypes of the state before it."""

from __future__ import annotations

from typing import Any

import jax

from .._logging import LOGGER
from .dtypes import (
    PyTree,
    cast,
    count_cast,
    dtype_of,
    dtypes_in,
    have_same_dtypes,
    is_half_dtype,
    is_jax_array,
    is_number,
    is_weak,
    leaves,
    may_cast,
    same_structure,
    unflatten_like,
)
from .moments import round_moments

_LOGGED: dict[str, object] = {}


def cast_back(new: PyTree, old: PyTree, whose: str = "") -> PyTree:
    """Cast a new state back to the dtypes of the old one, so that the state fits into a loop.

    A leaf stays within its kind of number: a float is never cast to an integer, nor a complex
    number to a real one. Such a leaf is returned unchanged, and so is a tree of another structure:
    JAX reports both where they matter.

    Args:
      new: the state after a step.
      old: the state before that step.
      whose: the code that made the new state, if that code may be user-defined. Each leaf that is
        cast back is then logged once, at level info, with its key path and both dtypes.
    """
    if have_same_dtypes(new, old) or not same_structure(new, old):
        return new
    if whose:
        _log_drift(new, old, whose)
    if any(map(is_half_dtype, dtypes_in(old))):
        rounded = round_moments(new, old)
        for before, after in zip(leaves(new), leaves(rounded)):
            if after is not before:
                count_cast(before, dtype_of(after))
        new = rounded
    return unflatten_like(new, map(cast_leaf_back, leaves(new), leaves(old)))


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
    return cast(leaf, was if may_cast(now, was) else now)


def _log_drift(new: PyTree, old: PyTree, whose: str) -> None:
    with_paths, _ = jax.tree_util.tree_flatten_with_path(new)
    for (path, leaf), before in zip(with_paths, leaves(old)):
        if not (is_number(leaf) and is_number(before)):
            continue
        was, now = dtype_of(before), dtype_of(leaf)
        if was != now and may_cast(now, was):
            key = jax.tree_util.keystr(path) or "itself"
            _log_once(f"{whose}: leaf {key} changed from {was} to {now}; cast back to {was}")


def _log_once(message: str) -> None:
    first = object()
    if _LOGGED.setdefault(message, first) is first:  # Atomic, and no lock for a fork to break.
        LOGGER.info(message)
