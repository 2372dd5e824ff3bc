"""Reproduce the faults of ``prodigy``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..._contract.x64 import x64
from ..._engine.patch import Reproducers
from . import _reproduce as demo

FAULTS = Reproducers()


def _build(optax: Any) -> Any:
    return demo.public(optax, "contrib.prodigy")()


def _show(optax: Any, *dtypes: Any, inside: bool = False) -> str | None:
    return demo.one_step(_build(optax), *dtypes, inside=inside)


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


@FAULTS.traced
@x64()
def float64(optax: Any) -> str | None:
    """float32 params in 64-bit mode: float64 in state and updates."""
    return _show(optax, jnp.float32, inside=True)


@FAULTS.traced
@x64()
def float64_params(optax: Any) -> str | None:
    """float64 params: the state changes from float32 to float64."""
    return _show(optax, jnp.float64)


@FAULTS.traced
def promoted_updates(optax: Any) -> str | None:
    """float32 updates for bfloat16 params."""
    return _show(optax, jnp.bfloat16)


@FAULTS.traced
def mixed_tree(optax: Any) -> str | None:
    """Leaves of different dtypes: the state changes dtype, or updates are promoted."""
    return _narrow(optax, jnp.bfloat16, jnp.float32) or _show(optax, jnp.bfloat16, jnp.float32)


@FAULTS.traced
def narrow_scalars(optax: Any) -> str | None:
    """Distance estimates are kept in the lowest dtype of the params."""
    return _narrow(optax, jnp.bfloat16) or _narrow(optax, jnp.float32, jnp.int32)


def _narrow(optax: Any, *dtypes: Any) -> str | None:
    state = demo.initial(_build(optax), *dtypes)
    return demo.wrong_dtype("estim_lr is {}", state.estim_lr)


@FAULTS.traced
def complex_params(optax: Any) -> str | None:
    """Complex params make the distance estimate complex, and it hardly grows."""
    return _show(optax, jnp.complex64) or _narrow(optax, jnp.complex64)


@FAULTS.computed(probe=_probe_zero_gradient)
def zero_gradient(optax: Any) -> str | None:
    """Zero gradients in the first step: 0/0, NaN from then on."""
    updates, state = demo.steps(_build(optax), demo.ones(jnp.float32), [0.0])
    text = "a zero gradient in the first step gives nan updates"
    return demo.not_finite(text, (updates["b"], state.estim_lr))
