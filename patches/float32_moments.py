"""float32_moments (opt-in): second moments of half-precision params are in float32.

A second moment in half precision is rounded in each step. ``bfloat16_moments`` and ``float16_eps``
round it such that its mean is right, which leaves an error of 1 % in the updates of adam. rmsprop,
adagrad, sm3 and adadelta have no step counter: there the moment of a single element still stalls if
gradients repeat exactly. optax has ``mu_dtype`` for
the first moment and nothing for the second
(https://github.com/google-deepmind/optax/issues/1552).

Here new states have second moments in float32, which take twice the memory, and stock runs on
float32 copies of the narrower leaves. A moment restored from a checkpoint keeps its dtype. If you
pass no params and no other moment tells their dtype, the gradients stand in for them.
"""

from __future__ import annotations

from .._contract.dtypes import is_half_dtype
from .._engine.patch import Patch
from ._support.in_float32 import MOMENT_TRANSFORMS, InFloat32

PATCH = Patch(
    "float32_moments",
    summary="second moments in half precision are rounded in each step: in bfloat16, the sum of "
    "squares of adagrad stops growing",
    opt_in=True,
    allow_missing_targets=True,
)
PATCH.fault("narrow_moments", ">=0.1.2", issue=1552)
PATCH.fault("stalled_moment", ">=0.1.2", issue=1552)
PATCH.fault("stalled_decay", ">=0.1.2", issue=1552)
PATCH.fault("stalled_factors", ">=0.2.4")
PATCH.fault("stalled_sum", ">=0.1.2")

WITH_MOMENTS = tuple(transform for transform in MOMENT_TRANSFORMS if transform.moments)


for _transform in WITH_MOMENTS:
    InFloat32(_transform, is_half_dtype, _transform.moments).wrap_in(PATCH)
