"""The transformations of optax with moments, and Adam in float64."""

from __future__ import annotations

from typing import Any, Callable

import jax
import numpy as np
import optax
import pytest

import optax_dtypefix
from optax_dtypefix._engine.locate import find
from optax_dtypefix.patches._support.in_float32 import MOMENT_TRANSFORMS, InFloat32, MomentTransform

_ARGUMENTS = {
    "scale_by_madgrad": {"learning_rate": 0.1},
    "ema": {"decay": 0.9},
    "trace": {"decay": 0.9},
}

# muon works on matrices, and sophia needs an objective: they have tests of their own.
_LEFT_OUT = ("scale_by_muon", "scale_by_sophia")
# In optax 0.1.3 adamax calls a function that JAX has removed.
_BROKEN = ("scale_by_adamax",) if optax.__version__ == "0.1.3" else ()


def _function(transform: MomentTransform) -> Any:
    found = (find(module, transform.name) for module in transform.modules)
    return next(filter(None, found), None)


SIMPLE = [
    transform
    for transform in MOMENT_TRANSFORMS
    if _function(transform) is not None and transform.name not in _LEFT_OUT + _BROKEN
]


def parametrize(transforms: list[MomentTransform]) -> Any:
    """Run a test with each transformation."""
    names = [transform.name for transform in transforms]
    return pytest.mark.parametrize("transform", transforms, ids=names)


def build(transform: MomentTransform) -> Any:
    """Build a transformation."""
    return _function(transform)(**_ARGUMENTS.get(transform.name, {}))


def stock_and_patched(
    transform: MomentTransform, is_narrow: Callable[[Any], bool], *wide: str
) -> tuple[Any, Any]:
    """Build a transformation as stock does, and with one patch alone."""
    stock = optax_dtypefix.original(_function(transform))
    arguments = _ARGUMENTS.get(transform.name, {})
    patched = InFloat32(transform, is_narrow, wide)
    return stock(**arguments), patched(stock, **arguments)


def program(tx: Any, params: Any) -> str:
    """Return the jaxpr of the first step."""
    return str(jax.make_jaxpr(lambda p: tx.update(p, tx.init(p), p))(params))


def adam_step(
    g: Any, m: Any, v: Any, count: int, betas: tuple[float, float] = (0.9, 0.999)
) -> tuple[Any, Any, Any]:
    """Return the direction of Adam and the new moments, in float64 as in the paper."""
    b1, b2 = betas
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    return m / (1 - b1**count) / (np.sqrt(v / (1 - b2**count)) + 1e-8), m, v


def adam(gradients: Any, b2: float = 0.999) -> tuple[Any, Any]:
    """Return the directions of Adam for these gradients, and the last second moment."""
    m = v = np.zeros_like(gradients[0])
    directions = []
    for count, g in enumerate(gradients, 1):
        direction, m, v = adam_step(g, m, v, count, (0.9, b2))
        directions.append(direction)
    return np.stack(directions), v
