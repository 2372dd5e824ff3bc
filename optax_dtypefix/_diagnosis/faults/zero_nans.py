"""Reproduce the faults of ``zero_nans``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..._engine.patch import Reproducers
from . import _reproduce as demo


def _probe_product(optax: Any) -> str | None:
    """Trace a product over a whole leaf, where neither a sum nor the identity needs one."""
    tx = optax.MultiSteps(optax.identity(), 2, use_grad_mean=False)
    leaf = jax.ShapeDtypeStruct((3, 5), jnp.float32)
    for equation in demo.operations(lambda grads: tx.update(grads, tx.init(grads), grads), leaf):
        if equation.primitive.name == "mul" and equation.outvars[0].aval.shape == (3, 5):
            return "updates are held back by multiplying them with 0"
    return None


FAULTS = Reproducers(
    bool_mask=demo.step(
        "zero_nans inside MultiSteps has a bool mask: TypeError from cond",
        lambda optax: optax.MultiSteps(optax.zero_nans(), 2),
        jnp.float32,
    )
)


@FAULTS.computed(probe=_probe_product)
def nan_forever(optax: Any) -> str | None:
    """After one NaN micro-batch every later update is zero, without a warning.

    0 * nan = nan: (1 - emit) * acc_grads never resets the accumulator.
    """
    tx = optax.MultiSteps(optax.chain(optax.zero_nans(), optax.sgd(1.0)), 2)
    updates, _ = demo.steps(tx, demo.ones(jnp.float32), [jnp.nan, 1.0, 1.0, 1.0])
    text = "after one nan, two gradients of 1 give the update {:g}, not -1"
    return demo.wrong(text, updates["b"], -1.0)


@FAULTS.computed(probe=_probe_product)
def inf_leak(optax: Any) -> str | None:
    """After an inf micro-batch, a step that should emit zeros returns NaN.

    0 * inf = nan: a step that only accumulates returns emit * update.
    """
    # Without zero_nans inside, which would hide it.
    tx = optax.MultiSteps(optax.sgd(1.0), 2)
    updates, _ = demo.steps(tx, demo.ones(jnp.float32), [jnp.inf])
    return demo.wrong("a step that should emit zeros emits {:g}", updates["b"], 0.0)
