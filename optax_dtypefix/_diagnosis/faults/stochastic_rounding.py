"""Reproduce the faults of ``stochastic_rounding``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._engine.patch import Reproducers
from . import _reproduce as demo

FAULTS = Reproducers()

# Not all the same: where nothing moves, the same step would follow.
_STEPS, _MOVED = 1000, np.linspace(0.9e-4, 1.1e-4, 256)


def _run_steps(step: Any) -> float:
    ones = np.ones(_MOVED.shape, "bfloat16")

    def run(start: Any) -> Any:
        return jax.lax.fori_loop(0, _STEPS, lambda _, params: step(params), start)

    return float(demo.compiled(run, ones).astype(np.float64).mean())


def _probe(optax: Any) -> str | None:
    """Find params that stay in bfloat16: each step rounds them."""
    params = jax.ShapeDtypeStruct((1,), jnp.bfloat16)
    updates = jax.ShapeDtypeStruct((1,), jnp.float32)
    found = jax.eval_shape(optax.apply_updates, params, updates)
    return "apply_updates rounds to bfloat16" if found.dtype == jnp.bfloat16 else None


@FAULTS.computed(_probe)
def small_updates(optax: Any) -> str | None:
    """In bfloat16, 1,000 updates of about 0.0001 do not move params of 1."""
    updates = _MOVED.astype(np.float32)
    got = _run_steps(lambda params: optax.apply_updates(params, updates))
    return demo.wrong("after 1000 updates the mean of the params is {:.3g}, not {:.3g}", got, 1.1)


@FAULTS.computed()
def slow_average(optax: Any) -> str | None:
    """In bfloat16, 1,000 steps of incremental_update do not move an average by a small share."""
    new = (1 + _MOVED * 1e4).astype("bfloat16")
    got = _run_steps(lambda old: optax.incremental_update(jnp.asarray(new), old, 1e-3))
    exact = float(2 - 0.999**_STEPS)
    return demo.wrong("after 1000 steps the mean of the average is {:.3g}, not {:.3g}", got, exact)
