"""Enter JAX's standard dtype promotion for stock, and leave it for the user's functions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def standard_promotion(mode: str = "") -> AbstractContextManager[None]:
    """Use standard promotion, which stock's arithmetic needs; strict mode is meant for user code.

    ``1 - decay**count`` raises in strict mode: a float and an int32.

    Args:
      mode: the present mode, if it is known.
    """
    if (mode or mode_of_promotion()) == "standard":
        return contextlib.nullcontext()
    standard: AbstractContextManager[None] = jax.numpy_dtype_promotion("standard")
    return standard


def present_mode(mode: str) -> AbstractContextManager[None]:
    """Use a mode that the user set: ``mode_of_promotion`` said so before stock ran."""
    if mode == mode_of_promotion():
        return contextlib.nullcontext()
    present: AbstractContextManager[None] = jax.numpy_dtype_promotion(mode)
    return present


def mode_of_promotion() -> str:
    """Return the mode of promotion in this thread."""
    config: Any = jax.config
    mode: str = config.jax_numpy_dtype_promotion
    return mode
