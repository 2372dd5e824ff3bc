"""bfloat16_moments: moments of bfloat16 gradients are rounded by turns, so that none stalls.

v += (1 - b2) (g^2 - v) does not move v by less than half a unit in its last place. bfloat16 has 8
bits. So with b2 = 0.999, v stalls as soon as g^2 / v is below 1 + 2^-9 / 0.001, about 3. For unit
gradients v stalls at 0.5, and updates are 1.4 times too large. v never falls: 0.999 v rounds to v.
After 200 gradients of 1, updates for 8,000 gradients of 0.001 are 60 times too small.

Here stock runs on float32 copies of the bfloat16 leaves, and its state is rounded back: up in some
steps and down in others, so that the mean over steps is right. The step counter in the state
decides, so each run gives the same bits, and no memory is added. rmsprop, adagrad, sm3 and adadelta
have no counter: bits of the exact moment decide there, and only where rounding to nearest would not
move the moment. Gradients that repeat exactly still stall them: ``float32_moments`` does not.
``trace``, the momentum of SGD, is left as in stock. A ``mu_dtype`` that you ask for is rounded by
stock, to nearest.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import dtype_of, leaves
from .._engine.patch import Patch
from ._support import (
    reproduce as demo,
    stalls,
)
from ._support.in_float32 import MOMENT_TRANSFORMS, InFloat32, is_bfloat16

PATCH = Patch(
    "bfloat16_moments",
    summary="moments in bfloat16 stall: updates of adam are 1.4 times too large with steady "
    "gradients, and far too small after large ones",
    allow_missing_targets=True,
)


def _probe(optax: Any) -> str | None:
    """Find a moment that stock keeps in bfloat16: it is rounded in each step."""
    state = demo.initial(optax.scale_by_adam(), jnp.bfloat16)
    dtypes = set(map(dtype_of, leaves(state.nu)))
    return "scale_by_adam keeps nu in bfloat16" if any(map(is_bfloat16, dtypes)) else None


PATCH.fault(">=0.1.2", issue=1552, abstract=False, probe=_probe)(stalls.stalled_moment)
PATCH.fault(">=0.1.2", issue=1552, abstract=False)(stalls.stalled_decay)
PATCH.fault(">=0.2.4", abstract=False)(stalls.stalled_factors)
PATCH.fault(">=0.1.2", abstract=False)(stalls.stalled_ema)
PATCH.fault(">=0.1.2", abstract=False)(stalls.stalled_sum)


@PATCH.fault(">=0.1.2", abstract=False)
def stalled_without_counter(optax: Any) -> str | None:
    """In bfloat16, after large gradients, updates of rmsprop for small ones are too small."""
    gradients = np.random.default_rng(0).normal(size=2000)
    gradients[300:] *= 0.01
    got = stalls.updates_of(optax.scale_by_rms(decay=0.999), gradients)
    moment = 0.0
    for gradient in gradients:
        moment = 0.999 * moment + 0.001 * gradient**2
    text = "after 300 gradients of about 1 and 1700 of 0.01 the update is {:.3g}, not {:.3g}"
    return demo.wrong(text, got, gradients[-1] * moment**-0.5, rtol=0.2)


for _transform in MOMENT_TRANSFORMS:
    InFloat32(_transform, is_bfloat16).wrap_in(PATCH)
