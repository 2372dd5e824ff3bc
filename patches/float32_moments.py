"""float32_moments (opt-in): second moments of half-precision params are in float32.

v += (1 - b2) (g^2 - v) does not move v by less than half a unit in its last place. bfloat16 has 8
bits. So with b2 = 0.999, v stalls as soon as g^2 / v is below 1 + 2^-9 / 0.001, about 3. For unit
gradients v stalls at 0.5, and updates are 1.4 times too large. v never falls: 0.999 v rounds to v.
After 200 gradients of 1, updates for 8,000 gradients of 0.001 are 60 times too small. float16 has
11 bits, but no small numbers. optax has ``mu_dtype`` for the first moment and nothing for the
second (https://github.com/google-deepmind/optax/issues/1552).

Here new states have second moments in float32, which take twice the memory, and stock runs on
float32 copies of the narrower leaves. A moment restored from a checkpoint keeps its dtype. If you
pass no params and no other moment tells their dtype, the gradients stand in for them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import dtype_of, is_half, leaves
from .._engine.patch import Patch
from ._support import reproduce as demo
from ._support.in_float32 import MOMENT_TRANSFORMS, InFloat32, available

PATCH = Patch(
    "float32_moments",
    summary="second moments in half precision stall: in bfloat16, updates of adam are 1.4 times "
    "too large with steady gradients, and far too small after large ones",
    opt_in=True,
    allow_missing_targets=True,
)

_WITH_MOMENTS = tuple(transform for transform in MOMENT_TRANSFORMS if transform.moments)


@PATCH.fault(">=0.1.2", issue=1552)
def narrow_moments(optax: Any) -> str | None:
    """Second moments of half-precision params are kept in half precision."""
    params = jax.ShapeDtypeStruct((3, 4), jnp.bfloat16)
    for transform in _WITH_MOMENTS:
        names = () if transform.name in _WITH_ARGUMENTS else (transform.name,)
        for tx in available(optax, *names).values():
            state = jax.eval_shape(tx.init, params)
            for name in transform.moments:
                narrow = [leaf for leaf in leaves(getattr(state, name)) if is_half(leaf)]
                if narrow:
                    return f"{transform.name} keeps {name} in {dtype_of(narrow[0])}"
    return None


def _updates(tx: Any, gradients: Any) -> Any:
    """Return the updates of a bfloat16 param for these gradients, one a step."""
    return demo.steps(tx, np.ones((4, 4), jnp.bfloat16), gradients)[0]


@PATCH.fault(">=0.1.2", issue=1552, abstract=False)
def stalled_moment(optax: Any) -> str | None:
    """In bfloat16, with steady gradients, updates of adam are 1.4 times too large.

    v = 0.5 has neighbours 2^-8 apart above it: 0.001 (1 - 0.5) = 0.0005 is rounded away.
    """
    got = _updates(optax.scale_by_adam(mu_dtype=jnp.float32), [1.0] * 5000)
    return demo.wrong("after 5000 gradients of 1 the update is {:.3g}, not 1", got, 1.0)


@PATCH.fault(">=0.1.2", issue=1552, abstract=False)
def stalled_decay(optax: Any) -> str | None:
    """In bfloat16, after large gradients, updates of adam for small ones are 60 times too small.

    0.999 v rounds to v, so v never falls.
    """
    tx = optax.scale_by_adam(mu_dtype=jnp.float32)
    got = _updates(tx, [1.0] * 200 + [0.001] * 8000)
    text = "after 200 gradients of 1 and 8000 of 0.001 the update is {:.3g}, not 0.127"
    return demo.wrong(text, got, 0.1274, rtol=0.02)


@PATCH.fault(">=0.1.2", abstract=False)
def stalled_sum(optax: Any) -> str | None:
    """In bfloat16 the sum of squares of adagrad stops growing.

    The numbers above 256 are 2 apart: 256 + 1 is 256.
    """
    text = "after 1000 gradients of 1 the update is {:.3g}, not {:.3g}"
    return demo.wrong(text, _updates(optax.scale_by_rss(), [1.0] * 1000), 1000.1**-0.5)


@PATCH.fault(">=0.2.4", abstract=False)
def stalled_factors(optax: Any) -> str | None:
    """In bfloat16 the factors of adafactor's second moment stall.

    As in adam, but with a decay that tends to 1. Up to 0.2.3 the factors are float32.
    """
    tx = optax.scale_by_factored_rms(min_dim_size_to_factor=2)
    got = _updates(tx, [1.0] * 100 + [2.0] * 1900)
    return demo.wrong("after 100 gradients of 1 and 1900 of 2 the update is {:.3g}, not 1", got, 1)


_WITH_ARGUMENTS = ("scale_by_madgrad",)


for _transform in _WITH_MOMENTS:
    InFloat32(_transform, is_half, wide_moments=True).wrap_in(PATCH)
