"""Reproduce the faults of ``multi_steps``."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    PyTree,
    tree_map,
)
from ..._contract.x64 import x64
from ..._engine.patch import Reproducers
from . import _reproduce as demo

FAULTS = Reproducers()


@FAULTS.traced
def inner_drift(optax: Any) -> str | None:
    """MultiSteps around a transformation that changes a dtype: TypeError, or a changing state."""
    return demo.one_step(optax.MultiSteps(demo.drifting(optax), 2), jnp.bfloat16)


@FAULTS.traced
def adafactor(optax: Any) -> str | None:
    """MultiSteps(adafactor) on bfloat16 params: TypeError from cond."""
    tx = optax.MultiSteps(optax.adafactor(1e-3), 2)
    # Updates of adafactor are float32 there, like its state: ``promotion`` fixes that.
    return demo.one_step(tx, jnp.bfloat16, state_asks=True)


@FAULTS.traced
def schedule_free(optax: Any) -> str | None:
    """MultiSteps(schedule_free) on bfloat16 params: TypeError from cond."""
    tx = demo.public(optax, "contrib.schedule_free")(optax.sgd(0.1), learning_rate=0.1)
    return demo.one_step(optax.MultiSteps(tx, 2), jnp.bfloat16, state_asks=True)


@FAULTS.traced
def mixed_precision(optax: Any) -> str | None:
    """float32 gradients on bfloat16 params: TypeError from cond, or the state changes."""
    tx = optax.MultiSteps(optax.adam(1e-3), 2)
    return demo.one_step(tx, jnp.bfloat16, grads=jnp.float32)


@FAULTS.computed()
def half_precision_sum(optax: Any) -> str | None:
    """MultiSteps sums bfloat16 gradients in bfloat16: 1,000 from 0.5 to 1.5 get the mean 0.5."""
    tx, gradients = optax.MultiSteps(optax.sgd(1.0), 1000), np.linspace(0.5, 1.5, 1000)
    updates, _ = demo.steps(tx, np.zeros((), jnp.bfloat16), gradients)
    return demo.wrong("the mean of 1,000 gradients from 0.5 to 1.5 is {}", -updates, 1.0)


@FAULTS.traced
@x64()
def int64_schedule(optax: Any) -> str | None:
    """int64 every_k_schedule in 64-bit mode: TypeError from cond."""
    tx = optax.MultiSteps(optax.sgd(0.1), lambda step: jnp.asarray([2, 3], jnp.int64)[step % 2])
    return demo.one_step(tx, jnp.float32)


@FAULTS.traced
def callable_extra_argument(optax: Any) -> str | None:
    """Extra arguments that are functions: TypeError."""

    def update(
        grads: PyTree, state: PyTree, params: PyTree = None, *, value_fn: Any = None
    ) -> tuple[PyTree, PyTree]:
        del params, value_fn
        return grads, state

    return _show_extra_argument(optax, update, value_fn=lambda params: params)


@FAULTS.traced
def required_extra_argument(optax: Any) -> str | None:
    """Extra arguments that the inner transformation requires: TypeError."""

    def update(
        grads: PyTree, state: PyTree, params: PyTree = None, *, scale: Any
    ) -> tuple[PyTree, PyTree]:
        del params
        return tree_map(lambda g: g * scale, grads), state

    return _show_extra_argument(optax, update, scale=jax.ShapeDtypeStruct((), jnp.float32))


def _show_extra_argument(optax: Any, update: Callable[..., Any], **extra_args: Any) -> str | None:
    build = demo.public(optax, "GradientTransformationExtraArgs")
    inner = build(lambda _: optax.EmptyState(), update)
    return demo.one_step(optax.MultiSteps(inner, 2), jnp.float32, **extra_args)


@FAULTS.traced
def complex_accumulator(optax: Any) -> str | None:
    """Complex gradients lose their imaginary part."""
    return _narrow_accumulator(optax, jnp.complex64)


@FAULTS.traced
@x64()
def float64_accumulator(optax: Any) -> str | None:
    """float64 gradients are accumulated in float32."""
    return _narrow_accumulator(optax, jnp.float64)


def _narrow_accumulator(optax: Any, dtype: Any) -> str | None:
    state = demo.initial(optax.MultiSteps(optax.sgd(0.1), 2), dtype)
    text = f"{np.dtype(dtype)} gradients are accumulated in {{}}"
    return demo.wrong_dtype(text, state.acc_grads["w"], dtype)


@FAULTS.traced
def accumulator_dtype_none(optax: Any) -> str | None:
    """accumulator_dtype=None, as documented: TypeError."""
    demo.public(optax, "MultiSteps", parameter="accumulator_dtype")
    tx = optax.MultiSteps(optax.sgd(0.1), 2, accumulator_dtype=None)
    return demo.one_step(tx, jnp.bfloat16)


@FAULTS.traced
def strict_promotion(optax: Any) -> str | None:
    """Strict dtype promotion raises TypePromotionError inside MultiSteps."""
    with jax.numpy_dtype_promotion("strict"):
        return demo.one_step(optax.MultiSteps(optax.sgd(0.1), 2), jnp.float32)


@FAULTS.traced
def integer_leaf(optax: Any) -> str | None:
    """Integer leaves change the state to float32, or raise TypeError."""
    return demo.one_step(optax.MultiSteps(optax.sgd(1.0), 2), jnp.float32, jnp.int32)
