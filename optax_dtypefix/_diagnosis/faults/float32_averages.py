"""Reproduce the faults of ``float32_averages``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..._engine.patch import Reproducers
from . import (
    _reproduce as demo,
    _stalls as stalls,
)

FAULTS = Reproducers(
    {name: stalls.STALLS[name] for name in ("stalled_ema", "stalled_sum", "stalled_trace")}
)


@FAULTS.traced
def narrow_averages(optax: Any) -> str | None:
    """Averages of half-precision gradients are kept in half precision."""
    state = demo.initial(optax.ema(0.999), jnp.bfloat16)
    return demo.wrong_dtype("it is kept in {}", state.ema["w"])
