"""Reproduce the faults of ``conditional``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..._engine.patch import Reproducers
from . import _reproduce as demo

FAULTS = Reproducers()


def _every_other(step: Any) -> Any:
    return step % 2 == 0


@FAULTS.traced
def apply_if_finite(optax: Any) -> str | None:
    """apply_if_finite around an optimizer that changes a dtype: TypeError from cond."""
    return demo.one_step(optax.apply_if_finite(demo.drifting(optax), 3), jnp.bfloat16)


@FAULTS.traced
def maybe_update(optax: Any) -> str | None:
    """maybe_update around an optimizer that changes a dtype: TypeError from cond."""
    return _show_conditional(optax, "maybe_update")


@FAULTS.traced
def conditionally_transform(optax: Any) -> str | None:
    """conditionally_transform around an optimizer that changes a dtype: TypeError from cond."""
    return _show_conditional(optax, "conditionally_transform")


@FAULTS.traced
def conditionally_mask(optax: Any) -> str | None:
    """conditionally_mask around an optimizer that changes a dtype: TypeError from cond."""
    return _show_conditional(optax, "conditionally_mask")


def _show_conditional(optax: Any, name: str) -> str | None:
    build = demo.public(optax, name)
    return demo.one_step(build(demo.drifting(optax), _every_other), jnp.bfloat16)


@FAULTS.traced
def mixed_precision(optax: Any) -> str | None:
    """apply_if_finite with float32 gradients and bfloat16 params: TypeError from cond."""
    tx = optax.apply_if_finite(optax.trace(0.9), 3)
    return demo.one_step(tx, jnp.bfloat16, grads=jnp.float32)


@FAULTS.traced
def periodic_update(optax: Any) -> str | None:
    """periodic_update with new tensors of another dtype: TypeError from cond."""
    new, old = demo.shapes(jnp.float32), demo.shapes(jnp.bfloat16)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    tensors = jax.eval_shape(lambda *args: optax.periodic_update(*args, 2), new, old, step)
    return demo.wrong_dtype("bfloat16 tensors change to {}", tensors["w"], jnp.bfloat16)
