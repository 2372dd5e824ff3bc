"""Reproduce the faults of ``schedule_free``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...patches.schedule_free import STATISTICS
from . import _reproduce as demo


def _build(optax: Any, rate: Any = 0.1) -> Any:
    return demo.public(optax, "contrib.schedule_free")(optax.sgd(0.1), learning_rate=rate)


def _sum_of_weights(optax: Any) -> Any:
    return demo.steps(_build(optax), demo.ones("bfloat16"), [1.0] * 1000)[1].weight_sum


FAULTS = {
    "promoted_updates": demo.step("float32 updates for bfloat16 params", _build, "bfloat16"),
    "narrow_statistics": demo.narrow_fields(
        "weight_sum, max_lr and b1 are kept in the lowest dtype of the params",
        _build,
        "bfloat16",
        names=STATISTICS,
    ),
    "integer_leaf": demo.narrow_fields(
        "Integer leaves in the params make the statistics integers",
        _build,
        *("float32", "int32"),
        names=STATISTICS,
    ),
    "mixed_halves": demo.step(
        "bfloat16 and float16 leaves in one tree: ValueError, or float32 updates",
        _build,
        *("bfloat16", "float16"),
    ),
    "array_learning_rate": demo.step(
        "float32 array as learning rate: state or updates change dtype",
        lambda optax: _build(optax, np.asarray(0.1, np.float32)),
        "bfloat16",
    ),
    # One term, lr^2, is less than half a unit in the last place of 256 lr^2 in bfloat16.
    "stalled_sum": demo.number(
        "With bfloat16 params, the sum of weights stops growing after 256 steps",
        "weight_sum is {:g} after 1000 steps, not {:g}",
        _sum_of_weights,
        1000 * 0.1**2,
    ),
}
