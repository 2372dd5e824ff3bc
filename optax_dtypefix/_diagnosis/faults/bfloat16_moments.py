"""Reproduce the faults of ``bfloat16_moments``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import dtype_of, leaves
from ..._engine.patch import Reproducers
from ...patches._support.in_float32 import is_bfloat16
from . import (
    _reproduce as demo,
    _stalls as stalls,
)

FAULTS = Reproducers()


def _probe(optax: Any) -> str | None:
    """Find a moment that stock keeps in bfloat16: it is rounded in each step."""
    state = demo.initial(optax.scale_by_adam(), jnp.bfloat16)
    dtypes = set(map(dtype_of, leaves(state.nu)))
    return "scale_by_adam keeps nu in bfloat16" if any(map(is_bfloat16, dtypes)) else None


FAULTS.computed(probe=_probe)(stalls.stalled_moment)
FAULTS.computed()(stalls.stalled_decay)
FAULTS.computed()(stalls.stalled_factors)
FAULTS.computed()(stalls.stalled_ema)
FAULTS.computed()(stalls.stalled_sum)
FAULTS.computed()(stalls.stalled_trace)


@FAULTS.computed()
def stalled_without_counter(optax: Any) -> str | None:
    """In bfloat16, after large gradients, updates of rmsprop for small ones are too small."""
    gradients = np.random.default_rng(0).normal(size=2000)
    gradients[300:] *= 0.01
    got = stalls.last_update(optax.scale_by_rms(decay=0.999), gradients)
    moment = 0.0
    for gradient in gradients:
        moment = 0.999 * moment + 0.001 * gradient**2
    text = "after 300 gradients of about 1 and 1700 of 0.01 the update is {:.3g}, not {:.3g}"
    return demo.wrong(text, got, gradients[-1] * moment**-0.5, rtol=0.2)
