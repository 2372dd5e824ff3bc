"""Reproduce the faults of ``float32_averages``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..._engine.patch import Reproducers
from . import (
    _reproduce as demo,
    _stalls as stalls,
)

FAULTS = Reproducers()


@FAULTS.traced
def narrow_averages(optax: Any) -> str | None:
    """Averages of half-precision gradients are kept in half precision."""
    state = demo.initial(optax.ema(0.999), jnp.bfloat16)
    return demo.wrong_dtype("it is kept in {}", state.ema["w"])


FAULTS.computed()(stalls.stalled_ema)
FAULTS.computed()(stalls.stalled_sum)


@FAULTS.computed()
def stalled_trace(optax: Any) -> str | None:
    """In bfloat16, trace(0.99) of ones ends below its limit of 100."""
    got = stalls.last_update(optax.trace(0.99), [1.0] * 2000)
    return demo.wrong("after 2000 ones the trace is {:.3g}", got, 100.0)
