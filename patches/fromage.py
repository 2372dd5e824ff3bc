"""fromage: accepts a schedule as learning rate, on every release, and keeps the user's dtypes.

With m = 1 / sqrt(1 + lr^2) the update is (m - 1) p - m lr g |p| / |g| (Bernstein et al. 2020, On
the distance between two neural networks, https://arxiv.org/abs/2002.03432). Up to 0.2.5 stock
computes m when the transformation is built, so lr has to be a number. From 0.2.6 on stock accepts
schedules, but m - 1 is then a float32 array that changes bfloat16 to float32. In 0.2.6 the count of
that part never moves.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

import jax.numpy as jnp

from .._contract.dtypes import (
    PyTree,
    safe_increment,
    tree_map,
)
from .._contract.updates import cast_updates
from .._contract.widths import statistics_dtype
from .._engine.patch import Stock
from .door.arguments import arguments_of
from .door.float32 import cast_hyperparameter, half_to_float32
from .door.rebuild import call_of, rebuild


def _scheduled(stock: Stock, *args: Any, from_parts: bool, **kwargs: Any) -> Any:
    build = _from_parts if from_parts else stock
    arguments = arguments_of(stock, args, kwargs)
    schedule, min_norm = arguments["learning_rate"], arguments["min_norm"]
    if not callable(schedule):
        return stock(*args, **kwargs)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        tx = build(cast_hyperparameter(schedule, statistics_dtype(params)), min_norm)
        new_updates, state = tx.update(
            half_to_float32(updates), state, half_to_float32(params), **extra_args
        )
        return cast_updates(new_updates, updates, params), state

    return rebuild(build(schedule, min_norm), call_of(stock, args, kwargs), update_fn)


# From 0.2.7 on, stock takes a schedule: run stock in float32 for half-precision leaves.
with_stock = functools.partial(_scheduled, from_parts=False)
with_parts = functools.partial(_scheduled, from_parts=True)


def _from_parts(schedule: Callable[[Any], Any], min_norm: Any) -> Any:
    import optax

    def shrinkage(count: Any) -> Any:
        return 1 / (1 + schedule(count) ** 2) ** 0.5

    return optax.chain(
        optax.scale_by_trust_ratio(min_norm),
        optax.scale_by_schedule(lambda count: -1 * (shrinkage(count) * schedule(count))),
        _add_scheduled_weights(lambda count: shrinkage(count) - 1),
    )


def _add_scheduled_weights(schedule: Callable[[Any], Any]) -> Any:
    """Build ``add_decayed_weights`` with a schedule; 0.2.6 never counts, older releases lack it.

    The state has the class of 0.2.6, so that checkpoints of 0.2.6 restore.
    """
    import optax

    adding = sys.modules.get("optax.transforms._adding")
    state_class = getattr(adding, "WeightDecaySchedule", optax.ScaleByScheduleState)

    def init_fn(_: PyTree) -> Any:
        return state_class(count=jnp.zeros([], jnp.int32))

    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        if params is None:
            raise ValueError("fromage needs the params: call update(grads, state, params)")
        weight = schedule(state.count)
        updates = tree_map(lambda u, p: u + weight * p, updates, params)
        return updates, state_class(count=safe_increment(state.count))

    return optax.GradientTransformation(init_fn, update_fn)
