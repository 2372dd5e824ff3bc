"""Reproduce the faults of ``multi_steps``."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import PyTree, tree_map
from . import _reproduce as demo


def _wrap(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that builds ``MultiSteps`` around a transformation of a package."""
    return lambda optax: optax.MultiSteps(inner(optax), 2)


def _sgd(optax: Any) -> Any:
    return optax.sgd(0.1)


def _schedule_free(optax: Any) -> Any:
    return demo.public(optax, "contrib.schedule_free")(optax.sgd(0.1), learning_rate=0.1)


def _wrap_extra_argument(update: Callable[..., Any]) -> Callable[[Any], Any]:
    def build(optax: Any) -> Any:
        made = demo.public(optax, "GradientTransformationExtraArgs")
        return made(lambda _: optax.EmptyState(), update)

    return _wrap(build)


def _ignoring(
    grads: PyTree, state: PyTree, params: PyTree = None, *, value_fn: Any = None
) -> tuple[PyTree, PyTree]:
    del params, value_fn
    return grads, state


def _scaled(
    grads: PyTree, state: PyTree, params: PyTree = None, *, scale: Any
) -> tuple[PyTree, PyTree]:
    del params
    return tree_map(lambda g: g * scale, grads), state


def _mean(optax: Any) -> Any:
    tx, gradients = optax.MultiSteps(optax.sgd(1.0), 1000), np.linspace(0.5, 1.5, 1000)
    return -demo.steps(tx, np.zeros((), "bfloat16"), gradients)[0]


def _accumulator(dtype: Any) -> Callable[[Any], Any]:
    return lambda optax: demo.initial(_wrap(_sgd)(optax), dtype).acc_grads["w"]


FAULTS = {
    "inner_drift": demo.step(
        "MultiSteps around a transformation that changes a dtype: TypeError, or a changing state",
        _wrap(demo.drifting),
        "bfloat16",
    ),
    # Updates of adafactor are float32 there, like its state: ``promotion`` fixes that.
    "adafactor": demo.step(
        "MultiSteps(adafactor) on bfloat16 params: TypeError from cond",
        _wrap(lambda optax: optax.adafactor(1e-3)),
        "bfloat16",
        state_asks=True,
    ),
    "schedule_free": demo.step(
        "MultiSteps(schedule_free) on bfloat16 params: TypeError from cond",
        _wrap(_schedule_free),
        "bfloat16",
        state_asks=True,
    ),
    "mixed_precision": demo.step(
        "float32 gradients on bfloat16 params: TypeError from cond, or the state changes",
        _wrap(lambda optax: optax.adam(1e-3)),
        "bfloat16",
        grads="float32",
    ),
    "int64_schedule": demo.step(
        "int64 every_k_schedule in 64-bit mode: TypeError from cond",
        lambda optax: optax.MultiSteps(
            _sgd(optax), lambda step: jnp.asarray([2, 3], "int64")[step % 2]
        ),
        "float32",
        in_x64=True,
    ),
    "callable_extra_argument": demo.step(
        "Extra arguments that are functions: TypeError",
        _wrap_extra_argument(_ignoring),
        "float32",
        value_fn=lambda params: params,
    ),
    "required_extra_argument": demo.step(
        "Extra arguments that the inner transformation requires: TypeError",
        _wrap_extra_argument(_scaled),
        "float32",
        scale=jax.ShapeDtypeStruct((), "float32"),
    ),
    "strict_promotion": demo.step(
        "Strict dtype promotion raises TypePromotionError inside MultiSteps",
        _wrap(_sgd),
        "float32",
        strict=True,
    ),
    "integer_leaf": demo.step(
        "Integer leaves change the state to float32, or raise TypeError",
        _wrap(lambda optax: optax.sgd(1.0)),
        *("float32", "int32"),
    ),
    "half_precision_sum": demo.number(
        "MultiSteps sums bfloat16 gradients in bfloat16: 1,000 from 0.5 to 1.5 get the mean 0.5",
        "the mean of 1,000 gradients from 0.5 to 1.5 is {}",
        _mean,
        1.0,
    ),
    "complex_accumulator": demo.wrong_dtype(
        "Complex gradients lose their imaginary part",
        "complex64 gradients are accumulated in {}",
        _accumulator("complex64"),
        "complex64",
    ),
    "float64_accumulator": demo.wrong_dtype(
        "float64 gradients are accumulated in float32",
        "float64 gradients are accumulated in {}",
        _accumulator("float64"),
        "float64",
        in_x64=True,
    ),
    "accumulator_dtype_none": demo.step(
        "accumulator_dtype=None, as documented: TypeError",
        lambda optax: demo.call("MultiSteps", _sgd(optax), 2, accumulator_dtype=None)(optax),
        "bfloat16",
    ),
}
