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
    "own_transformation": demo.step(
        "User-defined transformations change the dtypes of their state",
        _own_transformation,
        "bfloat16",
    ),
}
