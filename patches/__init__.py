"""The catalogue: one line a patch, in the order in which patches of one target are stacked.

A new patch is a file here that defines ``PATCH``, its reproducers in ``_diagnosis/faults/``, and
its line below.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._engine.patch import Patch

IDS = (
    "every_transform",
    "multi_steps",
    "zero_nans",
    "schedule_free",
    "zoom_linesearch",
    "prodigy",
    "fromage",
    "learning_rate",
    "conditional",
    "float32_moments",
    "float32_averages",
    "float16_eps",
    "bfloat16_moments",
    "promotion",
    "inject_hyperparams",
    "global_norm",
    "distance_estimates",
    "reduce_on_plateau",
    "sums",
    "stochastic_rounding",
)


def load(patch_id: str) -> Patch:
    """Import one patch file, and JAX with it: call this only once optax is wanted."""
    patch: Patch = importlib.import_module(f"{__name__}.{patch_id}").PATCH
    return patch
