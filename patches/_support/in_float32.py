"""Run the transformations that divide by a moment of the gradients in float32.

``float16_eps``, ``bfloat16_moments``, ``float32_moments`` and ``float32_averages`` share this
module. All stand before ``promotion`` in the catalogue, so they add to its layer.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable

import jax.numpy as jnp

from ..._engine.patch import Stock
from ..._tally import NO_PATCH, Tally, current
from .layer import Layer, add_layer


@functools.cache
def is_float16(dtype: Any) -> bool:
    """Check for float16, which has too few exponents; bfloat16 has enough."""
    return bool(dtype == jnp.float16)


@functools.cache
def is_bfloat16(dtype: Any) -> bool:
    """Check for bfloat16, which has too few digits for small steps."""
    return bool(dtype == jnp.bfloat16)


@dataclasses.dataclass(eq=False, repr=False)  # Cheaper to import than a whole one.
class InFloat32:
    """A replacement that runs stock in float32 where the dtypes are too narrow.

    The state keeps its dtypes. An update is as wide as its gradient, its param and what the user
    asked for, as in stock. Where no leaf of gradients, params and moments is narrow, stock runs
    unchanged.

    Attributes:
      is_narrow: whether leaves of a dtype have to be widened.
      wide: if given, lists the fields that a new state of a class has in float32.
      tally: of the patch that runs.
    """

    is_narrow: Callable[[Any], bool]
    wide: Callable[[type], tuple[str, ...]] | None = None
    tally: Tally = NO_PATCH

    def __call__(self, stock: Stock, *args: Any, **kwargs: Any) -> Any:
        """Build stock's transformation, to be run in float32."""
        return add_layer(stock, args, kwargs, self._add_to)

    def _add_to(self, layer: Layer) -> None:
        widening = dataclasses.replace(self, tally=current())
        layer.widenings = (widening, *layer.widenings)
