"""float32_moments (opt-in): averages and sums of half-precision gradients are kept in float32.

``bfloat16_moments`` and ``float16_eps`` round moments such that their mean is right, which leaves
an error of 1 % in the updates of adam, and more where the state has no step counter. optax has
``mu_dtype`` for the first moment and nothing for the second
(https://github.com/google-deepmind/optax/issues/1552).

Here new states have their moments in float32, which take twice the memory, and stock runs on
float32 copies of the narrower leaves. A moment whose dtype you chose, by ``mu_dtype`` or
``accumulator_dtype``, keeps it, and so does one restored from a checkpoint. Pass params to
``update``: without them the gradients tell the dtypes.
"""

from __future__ import annotations

from .._contract.dtypes import is_half_dtype
from .._contract.moments import moments, second_moments
from .._tally import Tally
from .door.layer import InFloat32, Layer


class _Moments(InFloat32):
    """Widen all moments, or only the second ones if the user chose a dtype for the others."""

    def add_to(self, layer: Layer, tally: Tally) -> None:
        wide = second_moments if layer.requested else moments
        InFloat32(self.is_narrow, wide).add_to(layer, tally)


replace = _Moments(is_half_dtype)
