"""Reproduce the faults of ``reduce_on_plateau``."""

from __future__ import annotations

import types
from typing import Any

import jax
import numpy as np

from ..._contract.dtypes import PyTree
from . import _reproduce as demo

_FIELDS = ("scale", "lr", "best_value", "best_loss", "avg_value")
"""``lr`` and ``best_loss`` up to 0.2.1."""

_VALUE = jax.ShapeDtypeStruct((), "float32")


def _build(optax: Any, **arguments: Any) -> Any:
    """Build the transformation; its update takes ``value``, which 0.1.8 calls ``loss``."""
    tx = demo.call("contrib.reduce_on_plateau", **arguments)(optax)
    name = "loss" if "best_loss" in demo.initial(tx, "float32")._fields else "value"

    def update(grads: PyTree, state: PyTree, params: PyTree, *, value: Any) -> Any:
        return tx.update(grads, state, params, **{name: value})

    return types.SimpleNamespace(init=tx.init, update=update)


def _run(optax: Any, losses: Any, **arguments: Any) -> Any:
    """Return the state after some losses, with bfloat16 params."""
    values = np.asarray(losses, np.float32)
    tx = _build(optax, **arguments)
    return demo.steps(tx, demo.ones("bfloat16"), np.ones(len(losses)), value=values)[1]


def _run_scale(optax: Any, losses: Any, **arguments: Any) -> Any:
    state = _run(optax, losses, **arguments)
    return state.scale if "scale" in state._fields else state.lr  # Up to 0.2.1.


def _update(optax: Any) -> Any:
    tx, value = _build(optax), np.zeros((), np.float32)
    params = demo.shapes("bfloat16")
    return jax.eval_shape(lambda p: tx.update(p, tx.init(p), p, value=value)[0], params)["w"]


FAULTS = {
    "weak_types": demo.step(
        "Types of the values change in the first step: the step compiles twice",
        _build,
        "float32",
        value=_VALUE,
    ),
    "mixed_halves": demo.step(
        "bfloat16 and float16 leaves in one tree: ValueError, or float32 updates",
        _build,
        *("bfloat16", "float16"),
        value=_VALUE,
    ),
    "float64": demo.step(
        "float32 params in 64-bit mode: the values are float64",
        _build,
        "float32",
        in_x64=True,
        value=_VALUE,
    ),
    "float64_loss": demo.step(
        "float64 loss for float32 params: the state changes dtype, or lax.cond raises",
        _build,
        "float32",
        in_x64=True,
        value=jax.ShapeDtypeStruct((), np.float64),
    ),
    # 0.999 in bfloat16 is 1. Values, from 0.2.7 on, are kept in the dtype of the params too.
    "narrow_scalars": demo.number(
        "With bfloat16 params, a factor above 0.998 never reduces the scale",
        "the scale after 100 plateaus",
        lambda optax: _run_scale(optax, [1.0] * 101, factor=0.999, patience=1),
        0.999**100,
    ),
    "integer_leaf": demo.narrow_fields(
        "Integer leaves in the params make the scale an integer, which no factor reduces",
        _build,
        *("float32", "int32"),
        names=_FIELDS,
    ),
    "complex_leaf": demo.narrow_fields(
        "Complex leaves in the params make the best and the average value complex",
        _build,
        *("float32", "complex64"),
        names=_FIELDS,
    ),
    # From 2 down to 1, a bfloat16 has steps of 2^-7, 0.4% to 0.8%: patience runs out first.
    "no_plateau": demo.number(
        "With bfloat16 params, a loss that falls by 0.03% a step counts as a plateau",
        "the scale is {:g} although each loss is the best so far",
        lambda optax: _run_scale(optax, 2 * 0.9997 ** np.arange(100), patience=5),
        1.0,
    ),
    "promoted_updates": demo.wrong_dtype(
        "float32 updates for bfloat16 params",
        "{} updates for bfloat16 gradients",
        _update,
        "bfloat16",
    ),
    "array_min_scale": demo.step(
        "Arrays as min_scale with bfloat16 params: lax.cond raises, or float32 updates",
        lambda optax: _build(optax, min_scale=np.asarray(0.1, np.float32)),
        "bfloat16",
        value=_VALUE,
    ),
    # mean + (loss - mean) / n rounds to the mean in bfloat16, as soon as n is above 256.
    "running_mean": demo.number(
        "With bfloat16 params, the mean over accumulation_size losses is wrong",
        "the mean loss",
        lambda optax: _run(optax, np.linspace(1.0, 2.0, 299), accumulation_size=300).avg_value,
        1.5,
        rtol=1e-3,
    ),
}
