"""Widen moments in float16 where stock does: it has no squares of small gradients (C0)."""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax.numpy as jnp

from ..._contract.dtypes import (
    REAL,
    PyTree,
    all_dtypes,
    cast,
    kind_of,
    leaves,
    unflatten_like,
)
from ..._contract.moments import moments_in
from ..._contract.trace import trace_state
from ..._contract.updates import same_dtypes, subtrees_like
from .lifting import known_schedule
from .lifts import FLOAT16
from .users import is_called


def widen_range(
    known: dict[Any, list[Any] | None],
    traced: Callable[..., Any],
    given: tuple[PyTree, PyTree, PyTree],
    extra_args: dict[str, Any],
) -> PyTree:
    """Return the state before a step, in float32 where a step of stock makes float16 so.

    float16 has no squares of small gradients, and no large ones: the updates would be far off. In
    bfloat16 a moment is as right as any, and stays. Nothing is computed. Stock may raise for these
    dtypes; then it has nothing to be as wide as.

    Args:
      known: dtypes after a step of stock, by those before.
      traced: what stock would run.
      given: gradients, state and params.
      extra_args: of the update.
    """
    updates, state, params = given
    before = all_dtypes(state)
    like = params if params is not None else next(iter(subtrees_like(state, updates)), updates)
    if FLOAT16.isdisjoint(before) or same_dtypes(updates, like):
        return state
    key = (*before, None, *all_dtypes((updates, params)))
    if key not in known:
        extra_args = {n: known_schedule if is_called(n, v) else v for n, v in extra_args.items()}
        known[key] = trace_state(traced, updates, state, params, **extra_args)
    after = known[key]
    if after is None or len(after) != len(before):
        return state
    kept = set(map(id, leaves(moments_in(state))))

    def widened(leaf: Any, was: Any, now: Any) -> Any:
        grows = was in FLOAT16 and _is_wider(now) and id(leaf) in kept
        return cast(leaf, jnp.float32) if grows else leaf

    return unflatten_like(state, map(widened, leaves(state), before, all_dtypes(after)))


@functools.cache
def _is_wider(dtype: Any) -> bool:
    return kind_of(dtype) == REAL and dtype.itemsize > 2
