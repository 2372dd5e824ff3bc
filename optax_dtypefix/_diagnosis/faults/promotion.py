"""Reproduce the faults of ``promotion``."""

from __future__ import annotations

from typing import Any

import jax

from . import _reproduce as demo


def _rate(optax: Any) -> Any:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)
    return jax.eval_shape(schedule, jax.ShapeDtypeStruct((), "int32"))


def _integer_nesterov(optax: Any) -> Any:
    return demo.steps(demo.public(optax, "nadam")(0.1), demo.ones("float32"), [1], "int8")[0]


FAULTS = {
    # mu = b1 * mu + (1 - b1) * g: an int32 times a Python float is float32.
    "integer_leaf": demo.step(
        "State kept for an integer leaf changes to float32 in the first step",
        demo.call("scale_by_adam"),
        *("float32", "int32"),
    ),
    # ``scale_by_optimistic_gradient`` and ``cocob`` store updates of the parts before them.
    "integer_chain": demo.step(
        "State that a later part of a chain keeps for an integer leaf changes to float32",
        lambda optax: optax.chain(
            optax.scale(0.5), demo.public(optax, "scale_by_optimistic_gradient")()
        ),
        *("float32", "int32"),
    ),
    # The rate is cast to the dtype of the gradient: 0.1 is 0 in int8.
    "integer_gradients": demo.step(
        "Schedules as learning rate make every update for an int8 gradient 0",
        demo.call("scale_by_schedule", lambda _: 0.1),
        "float32",
        grads="int8",
    ),
    # One flat vector for all leaves has their widest dtype.
    "mixed_leaves": demo.step(
        "bfloat16 leaves beside float32 ones get float32 updates",
        lambda optax: optax.flatten(optax.sgd(0.1)),
        *("bfloat16", "float32"),
    ),
    "promoted_bfloat16": demo.step(
        "bfloat16 params get float32 state or updates from adafactor, sm3, radam, novograd",
        lambda optax: demo.available(optax, "scale_by_factored_rms", "scale_by_sm3"),
        "bfloat16",
    ),
    # Its momentum is float32 by default, and the updates are the momentum.
    "default_momentum": demo.step(
        "Adafactor with momentum gives bfloat16 params float32 updates",
        lambda optax: optax.adafactor(1e-3, momentum=0.9),
        "bfloat16",
    ),
    # momentum = 0.9 * bfloat16 + float32: the sum is float32.
    "wider_gradients": demo.step(
        "float32 gradients change the state of bfloat16 params to float32",
        lambda optax: optax.trace(0.9),
        "bfloat16",
        grads="float32",
    ),
    # 1 - decay**count: strict mode has no common dtype for a float and an int32.
    "strict_promotion": demo.step(
        "Strict dtype promotion raises TypePromotionError inside optax",
        demo.call("scale_by_adam"),
        "float32",
        strict=True,
    ),
    # 1 - step**-0.8 is a strong float64 where step is an int32 under x64.
    "float64_inside": demo.step(
        "Under x64, arithmetic on float32 params is float64",
        demo.call("scale_by_factored_rms"),
        "float32",
        in_x64=True,
    ),
    "long_counter": demo.step(
        "simplified_ademamix counts in int64 under x64, although no input is int64",
        demo.call("contrib.scale_by_simplified_ademamix"),
        "float64",
        in_x64=True,
    ),
    # count / float(decay_steps): strict mode has no common dtype for an int32 and a float.
    "strict_schedule": demo.traced(
        demo.row(
            "Strict dtype promotion raises TypePromotionError in cosine, warm-up and other "
            "schedules",
            _rate,
            lambda _: None,
            strict=True,
        )
    ),
    # It divides the gradients by 1 - decay**count, rounded to their dtype: by 0.
    "integer_nesterov": demo.not_finite(
        "Nadam with integer gradients: infinite updates",
        "the update for a gradient of 1 is infinite",
        _integer_nesterov,
    ),
}
