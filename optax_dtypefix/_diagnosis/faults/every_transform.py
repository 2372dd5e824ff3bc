"""Reproduce the faults of ``every_transform``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import PyTree
from . import _reproduce as demo


def _own_transformation(optax: Any) -> Any:
    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        del params
        return grads, state + np.float32(1)

    return optax.GradientTransformation(lambda _: jnp.zeros([], "bfloat16"), update)


FAULTS = {
    # momentum = 0.9 * bfloat16 + float32: the sum is float32.
    "wider_gradients": demo.step(
        "float32 gradients change the state of bfloat16 params to float32",
        lambda optax: optax.trace(0.9),
        "bfloat16",
        grads="float32",
    ),
    "own_transformation": demo.step(
        "User-defined transformations change the dtypes of their state",
        _own_transformation,
        "bfloat16",
    ),
}
