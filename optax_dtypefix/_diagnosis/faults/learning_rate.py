"""Reproduce the faults of ``learning_rate``."""

from __future__ import annotations

import numpy as np

from . import _reproduce as demo

FAULTS = {
    "array": demo.step(
        "float32 array as learning rate: float32 updates for bfloat16 params",
        lambda optax: optax.sgd(np.asarray(0.1, np.float32)),
        "bfloat16",
    ),
    "numpy_scalar": demo.step(
        "NumPy float64 as learning rate: float64 updates for float32 params under x64",
        lambda optax: optax.sgd(np.float64(0.1)),
        "float32",
        in_x64=True,
    ),
    "weight_decay": demo.step(
        "float32 array as weight decay: float32 updates for bfloat16 params",
        lambda optax: optax.add_decayed_weights(np.asarray(0.1, np.float32)),
        "bfloat16",
    ),
    "schedule_of_sm3": demo.step(
        "sm3 with a schedule as learning rate: TypeError",
        lambda optax: optax.sm3(demo.warm_up),
        "float32",
    ),
    "schedule_of_optimistic_adam": demo.step(
        "optimistic_adam with a schedule as learning rate: TypeError, later ValueError",
        lambda optax: demo.public(optax, "optimistic_adam")(demo.warm_up),
        "float32",
    ),
}
