"""Reproduce the faults of ``bfloat16_moments``."""

from __future__ import annotations

import numpy as np

from . import (
    _reproduce as demo,
    _stalls as stalls,
)

# It is rounded in each step.
_IN_BFLOAT16 = demo.wrong_dtype(
    "Stock keeps a moment in bfloat16",
    "scale_by_adam keeps nu in {}",
    lambda optax: demo.initial(optax.scale_by_adam(), "bfloat16").nu["w"],
)
_NOISY = np.random.default_rng(0).normal(size=2000) * np.where(np.arange(2000) < 300, 1, 0.01)

FAULTS = {
    **stalls.STALLS,
    "stalled_moment": stalls.STALLS["stalled_moment"]._replace(probe=_IN_BFLOAT16.run),
    "stalled_without_counter": demo.number(
        "In bfloat16, after large gradients, updates of rmsprop for small ones are too small",
        "after 300 gradients of about 1 and 1700 of 0.01 the update is {:.3g}, not {:.3g}",
        lambda optax: stalls.last_update(optax.scale_by_rms(decay=0.999), _NOISY),
        _NOISY[-1] * (0.001 * stalls.decayed_sum(_NOISY**2, 0.999)) ** -0.5,
        rtol=0.2,
    ),
}
