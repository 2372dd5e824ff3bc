"""Reproduce the faults of ``zero_nans``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from . import _reproduce as demo

# A product over a whole leaf, where neither a sum nor the identity needs one.
_MULTIPLIES = demo.operation(
    "Updates are held back by multiplying them with 0",
    lambda optax: optax.MultiSteps(optax.identity(), 2, use_grad_mean=False),
    lambda equation, _: equation.primitive.name == "mul" and equation.outvars[0].aval.ndim > 0,
    demo.shapes("float32"),
)


def _last_update(tx: Any, *gradients: float) -> Any:
    return demo.steps(tx, demo.ones("float32"), gradients)[0]["b"]


FAULTS = {
    "bool_mask": demo.step(
        "zero_nans inside MultiSteps has a bool mask: TypeError from cond",
        lambda optax: optax.MultiSteps(optax.zero_nans(), 2),
        "float32",
    ),
    # 0 * nan = nan: (1 - emit) * acc_grads never resets the accumulator.
    "nan_forever": demo.number(
        "After one NaN micro-batch every later update is zero, without a warning",
        "after one nan, two gradients of 1 give the update {:g}, not -1",
        lambda optax: _last_update(
            optax.MultiSteps(optax.chain(optax.zero_nans(), optax.sgd(1.0)), 2),
            *(jnp.nan, 1.0, 1.0, 1.0),
        ),
        -1.0,
    )._replace(probe=_MULTIPLIES.run),
    # 0 * inf = nan: a step that only accumulates returns emit * update. Without zero_nans inside,
    # which would hide it.
    "inf_leak": demo.number(
        "After an inf micro-batch, a step that should emit zeros returns NaN",
        "a step that should emit zeros emits {:g}",
        lambda optax: _last_update(optax.MultiSteps(optax.sgd(1.0), 2), jnp.inf),
        0.0,
    )._replace(probe=_MULTIPLIES.run),
}
