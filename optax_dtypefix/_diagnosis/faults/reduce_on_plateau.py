"""Reproduce the faults of ``reduce_on_plateau``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    PyTree,
)
from ..._contract.x64 import x64
from ..._engine.patch import Reproducers
from . import _reproduce as demo

FAULTS = Reproducers()


def _built(optax: Any, **arguments: Any) -> tuple[Any, str]:
    """Build the transformation, and name the argument that takes the loss on this release."""
    tx = demo.public(optax, "contrib.reduce_on_plateau")(**arguments)
    state = demo.initial(tx, jnp.float32)
    return tx, "loss" if "best_loss" in state._fields else "value"


def _show(optax: Any, *dtypes: Any, loss: Any = jnp.float32, **arguments: Any) -> str | None:
    tx, name = _built(optax, **arguments)
    value: dict[str, Any] = {name: jax.ShapeDtypeStruct((), loss)}
    return demo.one_step(tx, *dtypes, inside=loss != jnp.float64, **value)


@FAULTS.traced
def weak_types(optax: Any) -> str | None:
    """Types of the values change in the first step: the step compiles twice."""
    return _show(optax, jnp.float32)


@FAULTS.traced
def promoted_updates(optax: Any) -> str | None:
    """float32 updates for bfloat16 params."""
    tx, name = _built(optax)

    def update(params: PyTree) -> PyTree:
        return tx.update(params, tx.init(params), params, **{name: jnp.zeros((), jnp.float32)})[0]

    updates = jax.eval_shape(update, demo.shapes(jnp.bfloat16))
    return demo.wrong_dtype("{} updates for bfloat16 gradients", updates["w"], jnp.bfloat16)


@FAULTS.traced
def mixed_halves(optax: Any) -> str | None:
    """bfloat16 and float16 leaves in one tree: ValueError, or float32 updates."""
    return _show(optax, jnp.bfloat16, jnp.float16)


@FAULTS.traced
@x64()
def float64(optax: Any) -> str | None:
    """float32 params in 64-bit mode: the values are float64."""
    return _show(optax, jnp.float32)


@FAULTS.traced
@x64()
def float64_loss(optax: Any) -> str | None:
    """float64 loss for float32 params: the state changes dtype, or lax.cond raises."""
    return _show(optax, jnp.float32, loss=jnp.float64)


@FAULTS.traced
def array_min_scale(optax: Any) -> str | None:
    """Arrays as min_scale with bfloat16 params: lax.cond raises, or float32 updates."""
    demo.public(optax, "contrib.reduce_on_plateau", parameter="min_scale")
    return _show(optax, jnp.bfloat16, min_scale=np.asarray(0.1, np.float32))


@FAULTS.computed()
def narrow_scalars(optax: Any) -> str | None:
    """With bfloat16 params, a factor above 0.998 never reduces the scale.

    0.999 in bfloat16 is 1. Values, from 0.2.7 on, are kept in the dtype of the params too.
    """
    state = _after(optax, [1.0] * 101, factor=0.999, patience=1)
    return demo.wrong("the scale after 100 plateaus", _scale_of(state), 0.999**100)


def _scale_of(state: Any) -> Any:
    return state.scale if "scale" in state._fields else state.lr  # Up to 0.2.1.


@FAULTS.traced
def integer_leaf(optax: Any) -> str | None:
    """Integer leaves in the params make the scale an integer, which no factor reduces."""
    return _narrow(optax, jnp.float32, jnp.int32)


@FAULTS.traced
def complex_leaf(optax: Any) -> str | None:
    """Complex leaves in the params make the best and the average value complex."""
    return _narrow(optax, jnp.float32, jnp.complex64)


def _narrow(optax: Any, *dtypes: Any) -> str | None:
    state = demo.initial(_built(optax)[0], *dtypes)
    return demo.first_not_float32(state, [name for name in state._fields if "count" not in name])


def _after(optax: Any, losses: Any, **arguments: Any) -> Any:
    """Return the state after some losses, with bfloat16 params."""
    tx, name = _built(optax, **arguments)
    values = {name: np.asarray(losses, np.float32)}
    return demo.steps(tx, demo.ones(jnp.bfloat16), np.ones(len(losses)), **values)[1]


@FAULTS.computed()
def no_plateau(optax: Any) -> str | None:
    """With bfloat16 params, a loss that falls by 0.03% a step counts as a plateau.

    From 2 down to 1, a bfloat16 has steps of 2^-7, 0.4% to 0.8%: patience runs out first.
    """
    state = _after(optax, 2 * 0.9997 ** np.arange(100), patience=5)
    text = "the scale is {:g} although each loss is the best so far"
    return demo.wrong(text, _scale_of(state), 1.0)


@FAULTS.computed()
def running_mean(optax: Any) -> str | None:
    """With bfloat16 params, the mean over accumulation_size losses is wrong.

    mean + (loss - mean) / n rounds to the mean in bfloat16, as soon as n is above 256.
    """
    demo.public(optax, "contrib.reduce_on_plateau", parameter="accumulation_size")
    losses = np.linspace(1.0, 2.0, 299)
    state = _after(optax, losses, accumulation_size=300)
    return demo.wrong("the mean loss", state.avg_value, losses.mean(), rtol=1e-3)
