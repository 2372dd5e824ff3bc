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
from .._contract.moments import second_moments
from ._support.layer import InFloat32

replace = InFloat32(is_half_dtype, wide=second_moments)
