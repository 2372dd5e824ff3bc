"""Reproduce the faults of ``promotion``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..._contract.x64 import x64
from ..._engine.patch import Reproducers
from . import _reproduce as demo

FAULTS = Reproducers()


@FAULTS.traced
def integer_leaf(optax: Any) -> str | None:
    """State kept for an integer leaf changes to float32 in the first step.

    mu = b1 * mu + (1 - b1) * g: an int32 times a Python float is float32.
    """
    return demo.one_step(optax.scale_by_adam(), jnp.float32, jnp.int32)


@FAULTS.traced
def integer_chain(optax: Any) -> str | None:
    """State that a later part of a chain keeps for an integer leaf changes to float32.

    ``scale_by_optimistic_gradient`` and ``cocob`` store updates of the parts before them.
    """
    later = demo.public(optax, "scale_by_optimistic_gradient")()
    tx = optax.chain(optax.scale(0.5), later)
    return demo.one_step(tx, jnp.float32, jnp.int32)


@FAULTS.traced
def integer_gradients(optax: Any) -> str | None:
    """Schedules as learning rate make every update for an int8 gradient 0.

    The rate is cast to the dtype of the gradient: 0.1 is 0 in int8.
    """
    tx = optax.scale_by_schedule(lambda _: 0.1)
    return demo.one_step(tx, jnp.float32, grads=jnp.int8)


@FAULTS.traced
def mixed_leaves(optax: Any) -> str | None:
    """bfloat16 leaves beside float32 ones get float32 updates.

    One flat vector for all leaves has their widest dtype.
    """
    return demo.one_step(optax.flatten(optax.sgd(0.1)), jnp.bfloat16, jnp.float32)


@FAULTS.traced
def promoted_bfloat16(optax: Any) -> str | None:
    """bfloat16 params get float32 state or updates from adafactor, sm3, radam, novograd."""
    transformations = (optax.scale_by_factored_rms(), optax.scale_by_sm3())
    return demo.first(demo.one_step(tx, jnp.bfloat16) for tx in transformations)


@FAULTS.traced
def default_momentum(optax: Any) -> str | None:
    """Adafactor with momentum gives bfloat16 params float32 updates.

    Its momentum is float32 by default, and the updates are the momentum.
    """
    return demo.one_step(optax.adafactor(1e-3, momentum=0.9), jnp.bfloat16)


@FAULTS.traced
def strict_promotion(optax: Any) -> str | None:
    """Strict dtype promotion raises TypePromotionError inside optax.

    1 - decay**count: strict mode has no common dtype for a float and an int32.
    """
    with jax.numpy_dtype_promotion("strict"):
        return demo.one_step(optax.scale_by_adam(), jnp.float32)


@FAULTS.traced
def strict_schedule(optax: Any) -> str | None:
    """Strict dtype promotion raises TypePromotionError in cosine, warm-up and other schedules.

    count / float(decay_steps): strict mode has no common dtype for an int32 and a float.
    """
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)
    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(schedule, jax.ShapeDtypeStruct((), jnp.int32))
    return None


@FAULTS.traced
@x64()
def float64_inside(optax: Any) -> str | None:
    """Under x64, arithmetic on float32 params is float64.

    1 - step**-0.8 is a strong float64 where step is an int32 under x64.
    """
    return demo.one_step(optax.scale_by_factored_rms(), jnp.float32, inside=True)


@FAULTS.traced
@x64()
def long_counter(optax: Any) -> str | None:
    """simplified_ademamix counts in int64 under x64, although no input is int64."""
    tx = demo.public(optax, "contrib.scale_by_simplified_ademamix")()
    return demo.one_step(tx, jnp.float64)


@FAULTS.computed()
def integer_nesterov(optax: Any) -> str | None:
    """Nadam with integer gradients: infinite updates.

    It divides the gradients by 1 - decay**count, rounded to their dtype: by 0.
    """
    tx = demo.public(optax, "nadam")(0.1)
    updates, _ = demo.steps(tx, demo.ones(jnp.float32), [1], jnp.int8)
    got = float(updates["b"][0, 0])
    return demo.not_finite(f"gradients of 1 give the update {got:g}", got)
