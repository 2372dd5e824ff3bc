"""The transformations of optax with moments, and Adam in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import optax
import pytest

import optax_dtypefix
from optax_dtypefix._contract.moments import second_moments
from optax_dtypefix.patches.door.start import STARTS_ABOVE_ZERO
from support.builders import builders, stock_of
from support.thorough import one_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_ARGUMENTS = {
    "scale_by_madgrad": {"learning_rate": 0.1},
    "ema": {"decay": 0.9},
    "trace": {"decay": 0.9},
}

# muon works on matrices, and sophia needs an objective: they have tests of their own.
_LEFT_OUT = ("scale_by_muon", "scale_by_sophia")
# In optax 0.1.3 adamax calls a function that JAX has removed.
_BROKEN = ("scale_by_adamax",) if optax.__version__ == "0.1.3" else ()


class MomentTransform(NamedTuple):
    """A transformation with averages or sums of gradients.

    Attributes:
      name: of the function that builds it.
      function: that function.
    """

    name: str
    function: Any

    @property
    def starts_at_zero(self) -> bool:
        return self.name not in STARTS_ABOVE_ZERO

    @property
    def moments(self) -> tuple[str, ...]:
        """List the fields of its state that hold second moments, or their inputs."""
        return second_moments(type(jax.eval_shape(build(self).init, np.zeros((2, 3)))))


def _transforms() -> Iterator[MomentTransform]:
    for name, function in builders("float16_eps").items():
        yield MomentTransform(name, function)


SIMPLE = [t for t in _transforms() if t.name not in _LEFT_OUT + _BROKEN]


def parametrize(transforms: list[MomentTransform], count: int = 1) -> Any:
    """Run a test with each transformation; in the README's command with each ``count``-th."""
    names = [transform.name for transform in transforms]
    return pytest.mark.parametrize("transform", one_of(count, transforms), ids=names)


def build(transform: MomentTransform) -> Any:
    """Build a transformation."""
    return transform.function(**_ARGUMENTS.get(transform.name, {}))


def stock_and_patched(transform: MomentTransform) -> tuple[Any, Any]:
    """Build a transformation as stock does, and with the patches of moments."""
    arguments = _ARGUMENTS.get(transform.name, {})
    with optax_dtypefix.disabled("promotion"):
        patched = build(transform)
    return stock_of(transform.function)(**arguments), patched


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
