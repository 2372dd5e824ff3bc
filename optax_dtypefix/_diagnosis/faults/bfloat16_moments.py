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


def _probe(optax: Any) -> str | None:
    """Find a moment that stock keeps in bfloat16: it is rounded in each step."""
    state = demo.initial(optax.scale_by_adam(), jnp.bfloat16)
    dtypes = set(map(dtype_of, leaves(state.nu)))
    return "scale_by_adam keeps nu in bfloat16" if any(map(is_bfloat16, dtypes)) else None


_NOISY = np.random.default_rng(0).normal(size=2000) * np.where(np.arange(2000) < 300, 1, 0.01)

FAULTS = Reproducers(
    stalls.STALLS,
    stalled_moment=stalls.STALLS["stalled_moment"]._replace(probe=_probe),
    stalled_without_counter=demo.number(
        "In bfloat16, after large gradients, updates of rmsprop for small ones are too small",
        "after 300 gradients of about 1 and 1700 of 0.01 the update is {:.3g}, not {:.3g}",
        lambda optax: stalls.last_update(optax.scale_by_rms(decay=0.999), _NOISY),
        _NOISY[-1] * (0.001 * stalls.decayed_sum(_NOISY**2, 0.999)) ** -0.5,
        rtol=0.2,
    ),
)
