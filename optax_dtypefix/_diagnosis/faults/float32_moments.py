"""Reproduce the faults of ``float32_moments``."""

from __future__ import annotations

from typing import Any

from ..._contract.dtypes import is_half, leaves
from ..._contract.moments import moments
from ...patches import load
from . import (
    _reproduce as demo,
    bfloat16_moments as stalls,
)

_WITH_ARGUMENTS = {"ema", "scale_by_madgrad", "trace"}


def _build(optax: Any) -> dict[str, Any]:
    names = {name for target in load("float32_moments").targets for name in target.builds}
    return demo.available(optax, *sorted(names - _WITH_ARGUMENTS))


def _describe_narrow(tx: Any) -> str | None:
    state = demo.initial(tx, "bfloat16")
    for name in moments(state.__class__):
        if any(map(is_half, leaves(getattr(state, name)))):
            return f"it keeps {name} in bfloat16"
    return None


_STALLED = ("stalled_moment", "stalled_decay", "stalled_factors", "stalled_ema", "stalled_trace")

FAULTS = {
    **{name: stalls.FAULTS[name] for name in _STALLED},
    "stalled_accumulator": stalls.FAULTS["stalled_sum"],
    # The numbers above 256 are 2 apart: 256 + 1 is 256.
    "stalled_sum": demo.number(
        "In bfloat16 the sum of squares of adagrad stops growing",
        "after 1000 gradients of 1 the update is {:.3g}, not {:.3g}",
        lambda optax: stalls.last_update(optax.scale_by_rss(), [1.0] * 1000),
        1000.1**-0.5,
    ),
    "narrow_moments": demo.traced(
        demo.row(
            "Moments of half-precision params are kept in half precision",
            _build,
            _describe_narrow,
        )
    ),
}
