"""float32_averages (opt-in): averages and sums of half-precision gradients are kept in float32.

bfloat16 has 8 bits. ``trace(0.99)``, a momentum, adds a gradient to 0.99 of the sum so far: its sum
of ones stops at 64 on stock, in place of 100. ``bfloat16_moments`` and ``float16_eps`` round these
sums so that their mean is right, but still in each step.

Here new states have these sums in float32, which take twice the memory, and stock runs on float32
copies of the gradients. A state restored from a checkpoint keeps its dtypes, and so does one whose
``accumulator_dtype`` you chose. If you pass no params, the gradients stand in for them.

No upstream issue was found about the averages.
"""

from __future__ import annotations

from .._contract.dtypes import is_half_dtype
from .._contract.moments import moments
from .._tally import Tally
from ._support.layer import InFloat32, Layer


class _UnlessRequested(InFloat32):
    """Run stock in float32, unless the user chose the dtype of the accumulator."""

    def add_to(self, layer: Layer, tally: Tally) -> None:
        if not layer.requested:
            super().add_to(layer, tally)


replace = _UnlessRequested(is_half_dtype, wide=moments)
