"""Reproduce the faults of ``learning_rate``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._contract.x64 import x64
from ..._engine.patch import Reproducers
from . import _reproduce as demo

FAULTS = Reproducers()


@FAULTS.traced
def array(optax: Any) -> str | None:
    """float32 array as learning rate: float32 updates for bfloat16 params."""
    return demo.one_step(optax.sgd(np.asarray(0.1, np.float32)), jnp.bfloat16)


@FAULTS.traced
@x64()
def numpy_scalar(optax: Any) -> str | None:
    """NumPy float64 as learning rate: float64 updates for float32 params under x64."""
    return demo.one_step(optax.sgd(np.float64(0.1)), jnp.float32)


@FAULTS.traced
def weight_decay(optax: Any) -> str | None:
    """float32 array as weight decay: float32 updates for bfloat16 params."""
    tx = optax.add_decayed_weights(np.asarray(0.1, np.float32))
    return demo.one_step(tx, jnp.bfloat16)


@FAULTS.traced
def schedule_of_sm3(optax: Any) -> str | None:
    """sm3 with a schedule as learning rate: TypeError."""
    return demo.one_step(optax.sm3(demo.warm_up), jnp.float32)


@FAULTS.traced
@demo.no_warnings()  # Deprecated from 0.2.6 on.
def schedule_of_optimistic_adam(optax: Any) -> str | None:
    """optimistic_adam with a schedule as learning rate: TypeError, later ValueError."""
    build = demo.public(optax, "optimistic_adam")
    return demo.one_step(build(demo.warm_up), jnp.float32)
