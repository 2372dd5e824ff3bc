"""Reproduce the faults of ``float16_eps``."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._engine.patch import Reproducer, Reproducers
from ...patches._support.in_float32 import is_float16
from . import _reproduce as demo


def _steps(every: dict[str, Any], *gradients: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the updates for these gradients, one a step, and the last state, by the name.

    In one program for all transformations: to compile takes longer than to run.
    """

    def update(grads: Any, states: Any, params: Any) -> Any:
        pairs = {name: tx.update(grads, states[name], params) for name, tx in every.items()}
        return tuple({name: pair[i] for name, pair in pairs.items()} for i in (0, 1))

    def init(params: Any) -> Any:
        return {name: tx.init(params) for name, tx in every.items()}

    together = types.SimpleNamespace(init=init, update=update)
    return demo.steps(together, np.ones((3, 4), np.float16), gradients)


def _not_finite(summary: str, *names: str, gradient: float = 0.0) -> Reproducer:
    """Reproduce two steps of which one is not finite, of one of these transformations."""

    def run(optax: Any) -> str | None:
        every = demo.available(optax, *names)
        updates, _ = _steps(every, gradient, gradient)
        sizes = {name: np.abs(updates[name]).max((1, 2)) for name in every}
        text = f"the update for a gradient of {gradient:g} is "
        return demo.first_named(
            lambda steps: demo.first(demo.not_finite(f"{text}{size}", size) for size in steps),
            sizes,
        )

    return Reproducer(summary, run)


FAULTS = Reproducers(
    # m = v = 0, and eps = 1e-8 is less than half of 6e-8: 0 / (sqrt(0) + 0).
    zero_gradient=_not_finite(
        "In float16 a zero gradient gives NaN in adam, amsgrad and adabelief",
        *("scale_by_adam", "scale_by_amsgrad", "scale_by_belief"),
    ),
    # 0 * rsqrt(0 + 0).
    rmsprop=_not_finite(
        "In float16 a zero gradient gives NaN in rmsprop, centered or not",
        *("scale_by_rms", "scale_by_stddev"),
    ),
    # The norm of a layer is 0 here: 0 / (sqrt(0) + 0).
    novograd=_not_finite(
        "In float16 a zero gradient gives NaN in novograd and adan",
        *("scale_by_novograd", "scale_by_adan"),
    ),
    # epsilon = 1e-30 is 0, so the moment is 0: 0 * 0 ** -0.5. No upstream issue was found for this
    # fault and those below.
    adafactor=_not_finite(
        "In float16 a zero gradient gives NaN in adafactor", "scale_by_factored_rms"
    ),
    # As in adam. In cocob the largest gradient so far, which starts at eps = 1e-8, is 0.
    contrib=_not_finite(
        "In float16 a zero gradient gives NaN in acprop, ademamix and cocob",
        *("scale_by_acprop", "scale_by_ademamix", "scale_by_cocob"),
    ),
    # (1e-4)^2 is 1e-8, which is 0: m / (sqrt(0) + 0).
    tiny_gradient=_not_finite(
        "In float16 a gradient below 2e-4 gives an infinite update in adam and adafactor",
        *("scale_by_adam", "scale_by_rms", "scale_by_factored_rms"),
        gradient=1e-4,
    ),
)


@FAULTS.computed()
def lost_gradient(optax: Any) -> str | None:
    """In float16 a gradient below 2e-4 gives no update in sm3.

    (1e-4)^2 is 0, and sm3 replaces 1 / sqrt(0) by 0. The exact update is 0.1 g / sqrt(g^2 + 1e-8).
    """
    text = "the first update for a gradient of 1e-4 is {:g}, not 0.071"
    grads = np.full((3, 4), 1e-4, np.float16)
    return demo.first_named(
        lambda tx: demo.wrong(text, demo.first_updates(tx, grads), 0.071),
        demo.available(optax, "scale_by_sm3"),
    )


@FAULTS.computed()
def overflow(optax: Any) -> str | None:
    """In float16 the updates are zero for good after one gradient above 255.

    300^2 is 90000, above 65504: inf, and 0.999 * inf is inf.
    """
    every = demo.available(optax, "scale_by_adam", "scale_by_rms", "scale_by_rss")
    updates, states = _steps(every, 300.0, *[1.0] * 10)

    def show(name: str) -> str | None:
        last = np.abs(updates[name][-1]).max()
        text = f"after one gradient of 300 the updates are {last:g} for good"
        return demo.not_finite(text, states[name])

    return demo.first_named(show, {name: name for name in every})


@FAULTS.traced
def float16_arithmetic(optax: Any) -> str | None:
    """Optimizers divide by moments of float16 gradients in float16."""
    params = jax.ShapeDtypeStruct((3, 4), jnp.float16)

    def show(tx: Any) -> str | None:
        for equation in demo.operations(lambda p: tx.update(p, tx.init(p), p), params):
            what = equation.primitive.name
            if what in ("div", "rsqrt", "pow") and any(
                is_float16(v.aval.dtype) for v in equation.invars
            ):
                return f"{what} of a float16 moment"
        return None

    names = ("scale_by_adam", "scale_by_rms", "scale_by_factored_rms")
    return demo.first_named(show, demo.available(optax, *names))
