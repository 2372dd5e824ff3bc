"""Reproduce the faults of ``fromage``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..._engine.patch import Reproducers
from . import _reproduce as demo


def _build(optax: Any) -> Any:
    return optax.fromage(demo.warm_up)


FAULTS = Reproducers(
    schedule=demo.step("Schedules as learning rate: TypeError", _build, jnp.float32),
    promoted_updates=demo.step(
        "With a schedule, bfloat16 and float16 params get float32 updates, or a TypeError",
        _build,
        jnp.bfloat16,
    ),
)


@FAULTS.computed()
def frozen_decay(optax: Any) -> str | None:
    """With a schedule, the weight decay keeps its value of the first step."""
    try:
        tx = optax.fromage(lambda count: jnp.where(count == 0, 0.0, 1.0))
    except TypeError:  # No schedule is accepted at all: see above.
        return None
    updates, _ = demo.steps(tx, demo.ones(jnp.float32), [1.0, 1.0])
    m, lr = 2**-0.5, 1.0
    exact = (m - 1) - m * lr  # |p| = |g| = p = g = 1
    return demo.wrong(
        "the second update is {:g}, not {:g}: it has the first decay", updates["b"], exact
    )
