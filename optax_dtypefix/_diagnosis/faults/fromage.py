"""Reproduce the faults of ``fromage``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from . import _reproduce as demo


def _build(optax: Any) -> Any:
    return optax.fromage(demo.warm_up)


def _second_update(optax: Any) -> Any:
    try:
        tx = optax.fromage(lambda count: jnp.where(count == 0, 0.0, 1.0))
    except TypeError:  # No schedule is accepted at all: see below.
        return _EXACT
    return demo.steps(tx, demo.ones("float32"), [1.0, 1.0])[0]["b"]


_EXACT = 2**-0.5 - 1 - 2**-0.5  # (m - 1) |p| - m lr |p|, where m = 2**-0.5, lr = 1, |p| = |g|

FAULTS = {
    "schedule": demo.step("Schedules as learning rate: TypeError", _build, "float32"),
    "promoted_updates": demo.step(
        "With a schedule, bfloat16 and float16 params get float32 updates, or a TypeError",
        _build,
        "bfloat16",
    ),
    "frozen_decay": demo.number(
        "With a schedule, the weight decay keeps its value of the first step",
        "the second update is {:g}, not {:g}: it has the first decay",
        _second_update,
        _EXACT,
    ),
}
