"""float32_moments (opt-in): second moments of half-precision params are in float32.

A second moment in half precision is rounded in each step. ``bfloat16_moments`` and ``float16_eps``
round it such that its mean is right, which leaves an error of 1 % in the updates of adam. rmsprop,
adagrad, sm3 and adadelta have no step counter: there a moment still stalls if gradients repeat
exactly, and the sum of squares of adagrad stops at 256 unit gradients. optax has ``mu_dtype`` for
the first moment and nothing for the second
(https://github.com/google-deepmind/optax/issues/1552).

Here new states have second moments in float32, which take twice the memory, and stock runs on
float32 copies of the narrower leaves. A moment restored from a checkpoint keeps its dtype. If you
pass no params and no other moment tells their dtype, the gradients stand in for them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import dtype_of, is_half, is_half_dtype, leaves
from .._engine.patch import Patch
from ._support import (
    reproduce as demo,
    stalls,
)
from ._support.in_float32 import MOMENT_TRANSFORMS, InFloat32, available

PATCH = Patch(
    "float32_moments",
    summary="second moments in half precision are rounded in each step: in bfloat16, the sum of "
    "squares of adagrad stops growing",
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


PATCH.fault(">=0.1.2", issue=1552, abstract=False)(stalls.stalled_moment)
PATCH.fault(">=0.1.2", issue=1552, abstract=False)(stalls.stalled_decay)
PATCH.fault(">=0.2.4", abstract=False)(stalls.stalled_factors)


@PATCH.fault(">=0.1.2", abstract=False)
def stalled_sum(optax: Any) -> str | None:
    """In bfloat16 the sum of squares of adagrad stops growing.

    The numbers above 256 are 2 apart: 256 + 1 is 256.
    """
    got, _ = demo.steps(optax.scale_by_rss(), np.ones((4, 4), jnp.bfloat16), [1.0] * 1000)
    text = "after 1000 gradients of 1 the update is {:.3g}, not {:.3g}"
    return demo.wrong(text, got, 1000.1**-0.5)


_WITH_ARGUMENTS = ("scale_by_madgrad",)


for _transform in _WITH_MOMENTS:
    InFloat32(_transform, is_half_dtype, wide_moments=True).wrap_in(PATCH)
