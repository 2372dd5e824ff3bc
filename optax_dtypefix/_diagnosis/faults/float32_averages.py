"""Reproduce the faults of ``float32_averages``."""

from __future__ import annotations

from . import (
    _reproduce as demo,
    bfloat16_moments as stalls,
)

FAULTS = {
    **{name: stalls.FAULTS[name] for name in ("stalled_ema", "stalled_sum", "stalled_trace")},
    "narrow_averages": demo.wrong_dtype(
        "Averages of half-precision gradients are kept in half precision",
        "it is kept in {}",
        lambda optax: demo.initial(optax.ema(0.999), "bfloat16").ema["w"],
    ),
}
