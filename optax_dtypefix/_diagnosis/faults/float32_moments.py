"""Reproduce the faults of ``float32_moments``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..._contract.dtypes import dtype_of, is_half, leaves
from ..._contract.moments import second_moments
from ..._engine.patch import Reproducers
from ...patches import load
from . import (
    _reproduce as demo,
    _stalls as stalls,
)

FAULTS = Reproducers(
    {name: stalls.STALLS[name] for name in ("stalled_moment", "stalled_decay", "stalled_factors")},
    # The numbers above 256 are 2 apart: 256 + 1 is 256.
    stalled_sum=demo.number(
        "In bfloat16 the sum of squares of adagrad stops growing",
        "after 1000 gradients of 1 the update is {:.3g}, not {:.3g}",
        lambda optax: stalls.last_update(optax.scale_by_rss(), [1.0] * 1000),
        1000.1**-0.5,
    ),
)
_WITH_ARGUMENTS = {"scale_by_madgrad"}


@FAULTS.traced
def narrow_moments(optax: Any) -> str | None:
    """Second moments of half-precision params are kept in half precision."""
    params = jax.ShapeDtypeStruct((3, 4), jnp.bfloat16)
    wrapped = {target.name for target in load("float32_moments").targets}
    for function, tx in demo.available(optax, *sorted(wrapped - _WITH_ARGUMENTS)).items():
        state = jax.eval_shape(tx.init, params)
        for name in second_moments(state.__class__):
            narrow = [leaf for leaf in leaves(getattr(state, name)) if is_half(leaf)]
            if narrow:
                return f"{function} keeps {name} in {dtype_of(narrow[0])}"
    return None
