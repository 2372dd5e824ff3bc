"""Compiles sharded train steps on eight devices; prints collectives and shardings as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BUILDS = {
    "adamw": lambda: optax.adamw(0.1),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "MultiSteps(zero_nans)": lambda: optax.MultiSteps(
        optax.chain(optax.zero_nans(), optax.adam(0.1)), 2
    ),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.sgd)(0.1),
    "prodigy": optax.contrib.prodigy,
    "dog": lambda: optax.contrib.dog(0.1),
    "schedule_free": lambda: optax.contrib.schedule_free_sgd(0.1),
    "lamb": lambda: optax.lamb(0.1),
}
COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
)


def measure(build: Any, dtype: Any, mesh: Mesh) -> dict[str, Any]:
    sharding = {
        "w": NamedSharding(mesh, PartitionSpec("data", "model")),
        "b": NamedSharding(mesh, PartitionSpec("model")),
    }
    shapes = {"w": (8, 4), "b": (4,)}
    params = {
        name: jax.device_put(jnp.full(shape, 0.5, dtype), sharding[name])
        for name, shape in shapes.items()
    }
    tx = build()
    state = jax.jit(tx.init)(params)

    @jax.jit
    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    compiled = step.lower(params, state, params).compile()
    new_params, new_state = compiled(params, state, params)
    leaves = jax.tree_util.tree_leaves
    before, after = ([leaf for leaf in leaves(s) if leaf.ndim] for s in (state, new_state))
    return {
        "collectives": sorted(COLLECTIVE.findall(compiled.as_text())),
        "params stay": all(
            new_params[name].sharding.is_equivalent_to(sharding[name], len(shape))
            for name, shape in shapes.items()
        ),
        "state stays": all(
            new.sharding.is_equivalent_to(old.sharding, old.ndim) for old, new in zip(before, after)
        ),
    }


def main() -> None:
    mesh = Mesh(np.asarray(jax.devices()).reshape(4, 2), ("data", "model"))
    found = {
        f"{name} {dtype}": measure(build, dtype, mesh)
        for name, build in BUILDS.items()
        for dtype in ("float32", "bfloat16")
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
