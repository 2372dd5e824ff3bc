"""Donate params and a new state to a jitted step, and print what XLA says, for two processes.

``python -m support.donation`` prints JSON: for each transformation the error, or None, and how many
copies a traced ``init`` has.
"""

from __future__ import annotations

import json
import warnings
from typing import Any, Callable

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import optax


def builders() -> dict[str, Callable[[], Any]]:
    """Return by name the transformations whose state starts with the params, or one array twice."""
    contrib = getattr(optax, "contrib", None)
    found: dict[str, Callable[[], Any]] = {
        name: getattr(contrib, name)
        for name in ("prodigy", "dog", "dowg", "cocob")
        if hasattr(contrib, name)
    }
    if hasattr(contrib, "madgrad"):
        found["madgrad"] = lambda: optax.contrib.madgrad(0.1)
    if hasattr(contrib, "mechanize"):
        found["mechanize"] = lambda: optax.contrib.mechanize(optax.sgd(0.1))
    if hasattr(contrib, "sam"):
        found["sam"] = lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1))
    if hasattr(contrib, "schedule_free"):
        found["schedule_free"] = lambda: optax.contrib.schedule_free(optax.sgd(0.1), 0.1)
    if hasattr(optax, "scale_by_lbfgs"):
        found["scale_by_lbfgs"] = optax.scale_by_lbfgs
    if hasattr(optax, "scale_by_distance_over_gradients"):
        found["layerwise dog"] = optax.scale_by_distance_over_gradients
    if "prodigy" in found:
        found["inject_hyperparams"] = lambda: optax.inject_hyperparams(optax.contrib.prodigy)(1.0)
        found["MultiSteps"] = lambda: optax.MultiSteps(optax.contrib.prodigy(), 2)
    return found


PARAMS = {"w": jnp.arange(6, dtype=jnp.float32)}


def error_of(tx: Any) -> str | None:
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(params, state, params)
        return optax.apply_updates(params, updates), state

    params = jax.tree_util.tree_map(jnp.copy, PARAMS)
    state = tx.init(params)
    try:
        jax.jit(step, donate_argnums=(0, 1))(params, state)
    except Exception as error:
        return str(error)
    return None


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = {
        name: (error_of(build()), str(jax.make_jaxpr(build().init)(PARAMS)).count(" copy "))
        for name, build in builders().items()
    }
    print(json.dumps(found))
