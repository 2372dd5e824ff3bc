"""Reproduce the faults of ``schedule_free``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._engine.patch import Reproducers
from ...patches.schedule_free import STATISTICS
from . import _reproduce as demo

FAULTS = Reproducers()


def _build(optax: Any, **changed: Any) -> Any:
    build = demo.public(optax, "contrib.schedule_free")
    return build(optax.sgd(0.1), **{"learning_rate": 0.1, **changed})


@FAULTS.traced
def promoted_updates(optax: Any) -> str | None:
    """float32 updates for bfloat16 params."""
    return demo.one_step(_build(optax), jnp.bfloat16)


def _narrow_statistic(optax: Any, *dtypes: Any) -> str | None:
    state = demo.initial(_build(optax), *dtypes)
    return demo.first_not_float32(state, STATISTICS)


@FAULTS.traced
def narrow_statistics(optax: Any) -> str | None:
    """weight_sum, max_lr and b1 are kept in the lowest dtype of the params."""
    return _narrow_statistic(optax, jnp.bfloat16)


@FAULTS.traced
def integer_leaf(optax: Any) -> str | None:
    """Integer leaves in the params make the statistics integers."""
    return _narrow_statistic(optax, jnp.float32, jnp.int32)


@FAULTS.traced
def mixed_halves(optax: Any) -> str | None:
    """bfloat16 and float16 leaves in one tree: ValueError, or float32 updates."""
    return demo.one_step(_build(optax), jnp.bfloat16, jnp.float16)


@FAULTS.traced
def array_learning_rate(optax: Any) -> str | None:
    """float32 array as learning rate: state or updates change dtype."""
    tx = _build(optax, learning_rate=np.asarray(0.1, np.float32))
    return demo.one_step(tx, jnp.bfloat16)


@FAULTS.computed()
def stalled_sum(optax: Any) -> str | None:
    """With bfloat16 params, the sum of weights stops growing after 256 steps.

    One term, lr^2, is less than half a unit in the last place of 256 lr^2 in bfloat16.
    """
    _, state = demo.steps(_build(optax), demo.ones(jnp.bfloat16), [1.0] * 1000)
    text = "weight_sum is {:g} after 1000 steps, not {:g}"
    return demo.wrong(text, state.weight_sum, 1000 * 0.1**2)
