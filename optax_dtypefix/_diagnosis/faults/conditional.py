"""Reproduce the faults of ``conditional``."""

from __future__ import annotations

from typing import Any

import jax

from ..probes import Reproducer
from . import _reproduce as demo


def _conditional(name: str) -> Reproducer:
    return demo.step(
        f"{name} around an optimizer that changes a dtype: TypeError from cond",
        lambda optax: demo.public(optax, name)(demo.drifting(optax), lambda step: step % 2 == 0),
        "bfloat16",
    )


def _periodic_update(optax: Any) -> Any:
    new, old = demo.shapes("float32"), demo.shapes("bfloat16")
    step = jax.ShapeDtypeStruct((), "int32")
    return jax.eval_shape(lambda *args: optax.periodic_update(*args, 2), new, old, step)["w"]


FAULTS = {
    "apply_if_finite": demo.step(
        "apply_if_finite around an optimizer that changes a dtype: TypeError from cond",
        lambda optax: optax.apply_if_finite(demo.drifting(optax), 3),
        "bfloat16",
    ),
    "maybe_update": _conditional("maybe_update"),
    "conditionally_transform": _conditional("conditionally_transform"),
    "conditionally_mask": _conditional("conditionally_mask"),
    "mixed_precision": demo.step(
        "apply_if_finite with float32 gradients and bfloat16 params: TypeError from cond",
        lambda optax: optax.apply_if_finite(optax.trace(0.9), 3),
        "bfloat16",
        grads="float32",
    ),
    "periodic_update": demo.wrong_dtype(
        "periodic_update with new tensors of another dtype: TypeError from cond",
        "bfloat16 tensors change to {}",
        _periodic_update,
        "bfloat16",
    ),
}
