"""Reproduce the faults of ``float16_eps``."""

from __future__ import annotations

from typing import Any, Callable

import jax
import numpy as np

from ..probes import Reproducer
from . import _reproduce as demo


def _steps(names: tuple[str, ...], *gradients: float) -> Callable[[Any], dict[str, Any]]:
    """Return a function that takes steps with these gradients.

    It returns for each transformation that the package has the updates and the last state. In one
    program for all: to compile takes longer than to run.
    """

    def compute(optax: Any) -> dict[str, Any]:
        every = demo.available(optax, *names)
        tx = optax.multi_transform(every, {name: name for name in every})
        params = {name: np.ones((3, 4), np.float16) for name in every}
        updates, state = demo.steps(tx, params, gradients)
        return {name: (updates[name], state.inner_states[name]) for name in every}

    return compute


def _not_finite(summary: str, *names: str, gradient: float = 0.0) -> Reproducer:
    """Reproduce two steps of which one is not finite, of one of these transformations."""
    text = f"the update for a gradient of {gradient:g} is infinite or NaN"
    return demo.not_finite(summary, text, _steps(names, gradient, gradient))


def _first_updates(optax: Any) -> dict[str, Any]:
    grads = np.full((3, 4), 1e-4, np.float16)
    every = demo.available(optax, "scale_by_sm3").items()
    return {name: demo.first_updates(tx, grads) for name, tx in every}


FAULTS = {
    # m = v = 0, and eps = 1e-8 is less than half of 6e-8: 0 / (sqrt(0) + 0).
    "zero_gradient": _not_finite(
        "In float16 a zero gradient gives NaN in adam, amsgrad and adabelief",
        *("scale_by_adam", "scale_by_amsgrad", "scale_by_belief"),
    ),
    # 0 * rsqrt(0 + 0).
    "rmsprop": _not_finite(
        "In float16 a zero gradient gives NaN in rmsprop, centered or not",
        *("scale_by_rms", "scale_by_stddev"),
    ),
    # The norm of a layer is 0 here: 0 / (sqrt(0) + 0).
    "novograd": _not_finite(
        "In float16 a zero gradient gives NaN in novograd and adan",
        *("scale_by_novograd", "scale_by_adan"),
    ),
    # epsilon = 1e-30 is 0, so the moment is 0: 0 * 0 ** -0.5. No upstream issue was found for this
    # fault and those below.
    "adafactor": _not_finite(
        "In float16 a zero gradient gives NaN in adafactor", "scale_by_factored_rms"
    ),
    # As in adam. In cocob the largest gradient so far, which starts at eps = 1e-8, is 0.
    "contrib": _not_finite(
        "In float16 a zero gradient gives NaN in acprop, ademamix and cocob",
        *("scale_by_acprop", "scale_by_ademamix", "scale_by_cocob"),
    ),
    # (1e-4)^2 is 1e-8, which is 0: m / (sqrt(0) + 0).
    "tiny_gradient": _not_finite(
        "In float16 a gradient below 2e-4 gives an infinite update in adam and adafactor",
        *("scale_by_adam", "scale_by_rms", "scale_by_factored_rms"),
        gradient=1e-4,
    ),
    # (1e-4)^2 is 0, and sm3 replaces 1 / sqrt(0) by 0. It is 0.1 g / sqrt(g^2 + 1e-8).
    "lost_gradient": demo.number(
        "In float16 a gradient below 2e-4 gives no update in sm3",
        "the first update for a gradient of 1e-4 is {:g}, not {:g}",
        _first_updates,
        0.071,
    ),
    # 300^2 is 90000, above 65504: inf, and 0.999 * inf is inf.
    "overflow": demo.not_finite(
        "In float16 the updates are zero for good after one gradient above 255",
        "after one gradient of 300 the updates are 0 for good",
        _steps(("scale_by_adam", "scale_by_rms", "scale_by_rss"), 300.0, *[1.0] * 10),
    ),
    "float16_arithmetic": demo.operation(
        "Optimizers divide by moments of float16 gradients in float16",
        lambda optax: demo.available(
            optax, "scale_by_adam", "scale_by_rms", "scale_by_factored_rms"
        ),
        lambda equation, _: (
            equation.primitive.name in ("div", "rsqrt", "pow")
            and any(operand.aval.dtype == np.float16 for operand in equation.invars)
        ),
        jax.ShapeDtypeStruct((3, 4), "float16"),
    ),
}
