"""Reproduce the faults of ``prodigy``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..._engine.patch import Reproducers
from . import _reproduce as demo


def _build(optax: Any) -> Any:
    return demo.public(optax, "contrib.prodigy")()


def _probe_zero_gradient(optax: Any) -> str | None:
    """Trace a quotient of two scalars whose divisor is not the result of a selection."""
    tx, params = _build(optax), demo.shapes(jnp.float32)
    makers: dict[Any, Any] = {}
    for equation in demo.operations(lambda p: tx.update(p, tx.init(p), p), params):
        makers.update((variable, equation) for variable in equation.outvars)
        if equation.primitive.name == "div" and equation.outvars[0].aval.shape == ():
            maker = makers.get(equation.invars[1])
            if maker is not None and maker.primitive.name in ("add", "reduce_sum"):
                return "the distance is divided by a sum of gradients, which may be 0"
    return None


FAULTS = Reproducers(
    float64=demo.step(
        "float32 params in 64-bit mode: float64 in state and updates",
        _build,
        jnp.float32,
        in_x64=True,
        inside=True,
    ),
    float64_params=demo.step(
        "float64 params: the state changes from float32 to float64",
        _build,
        jnp.float64,
        in_x64=True,
    ),
    promoted_updates=demo.step("float32 updates for bfloat16 params", _build, jnp.bfloat16),
    mixed_tree=demo.step(
        "Leaves of different dtypes: the state changes dtype, or updates are promoted",
        _build,
        *(jnp.bfloat16, jnp.float32),
        float32_fields=("estim_lr",),
    ),
    complex_params=demo.step(
        "Complex params make the distance estimate complex, and it hardly grows",
        _build,
        jnp.complex64,
        float32_fields=("estim_lr",),
    ),
)


@FAULTS.traced
def narrow_scalars(optax: Any) -> str | None:
    """Distance estimates are kept in the lowest dtype of the params."""
    every = ((jnp.bfloat16,), (jnp.float32, jnp.int32))
    tx = _build(optax)
    return demo.first(demo.first_not_float32(tx, dtypes, ("estim_lr",)) for dtypes in every)


@FAULTS.computed(probe=_probe_zero_gradient)
def zero_gradient(optax: Any) -> str | None:
    """Zero gradients in the first step: 0/0, NaN from then on."""
    updates, state = demo.steps(_build(optax), demo.ones(jnp.float32), [0.0])
    text = "a zero gradient in the first step gives nan updates"
    return demo.not_finite(text, (updates["b"], state.estim_lr))
