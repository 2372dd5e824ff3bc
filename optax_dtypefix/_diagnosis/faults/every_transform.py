"""Reproduce the faults of ``every_transform``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import PyTree
from ..._engine.patch import Reproducers
from . import _reproduce as demo

FAULTS = Reproducers()


@FAULTS.traced
def wider_gradients(optax: Any) -> str | None:
    """float32 gradients change the state of bfloat16 params to float32.

    momentum = 0.9 * bfloat16 + float32: the sum is float32.
    """
    return demo.one_step(optax.trace(0.9), jnp.bfloat16, grads=jnp.float32)


@FAULTS.traced
def own_transformation(optax: Any) -> str | None:
    """User-defined transformations change the dtypes of their state."""

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        del params
        return grads, state + np.float32(1)

    tx = optax.GradientTransformation(lambda _: jnp.zeros([], jnp.bfloat16), update)
    return demo.one_step(tx, jnp.bfloat16)
