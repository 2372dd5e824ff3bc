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

from typing import Any

from .._contract.moments import moments, second_moments


def wide(state: type, requested: tuple[Any, ...], _: Any) -> tuple[str, ...]:
    """List all moments, or only the second ones if the user chose a dtype for the others."""
    return second_moments(state) if requested else moments(state)
