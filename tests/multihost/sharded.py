"""Compile and run train steps on eight devices; print programs, shardings, values as JSON.

``python -m multihost.sharded [NAME...]`` runs all transformations, or those named.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import optax_dtypefix  # isort: skip  # First, as in a training script.

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
FROM_SHAPES = {
    "adam": lambda: optax.adam(0.1),
    "cocob": optax.contrib.cocob,
    "madgrad": lambda: optax.contrib.madgrad(0.1),
    "master_weights": lambda: optax_dtypefix.master_weights(optax.adam(0.1)),
}
"""Some of these keep the params as they are given."""
MOVED = re.compile(
    r" (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|copy)(?:-start)?\("
)
SHAPES = {"w": (8, 4), "b": (4,)}


def shardings_on(mesh: Mesh) -> dict[str, Any]:
    return {
        "w": NamedSharding(mesh, PartitionSpec("data", "model")),
        "b": NamedSharding(mesh, PartitionSpec("model")),
    }


def moved_from_shapes(build: Any, dtype: Any, mesh: Mesh) -> list[str]:
    """List the arrays of a new state that are not on the devices of their params."""
    sharding = shardings_on(mesh)
    params = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding[name])
        for name, shape in SHAPES.items()
    }
    paths, _ = jax.tree_util.tree_flatten_with_path(build().init(params))
    of_shape = {shape: sharding[name] for name, shape in SHAPES.items()}
    return [
        jax.tree_util.keystr(path)
        for path, leaf in paths
        if leaf.ndim and leaf.sharding != of_shape[leaf.shape]
    ]


def measure(build: Any, dtype: Any, mesh: Mesh) -> dict[str, Any]:
    sharding = shardings_on(mesh)
    params = {
        name: jax.device_put(jnp.full(shape, 0.5, dtype), sharding[name])
        for name, shape in SHAPES.items()
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
        "moved": sorted(MOVED.findall(compiled.as_text())),
        "params stay": all(
            new_params[name].sharding.is_equivalent_to(sharding[name], len(shape))
            for name, shape in SHAPES.items()
        ),
        "state stays": all(
            new.sharding.is_equivalent_to(old.sharding, old.ndim) for old, new in zip(before, after)
        ),
    }


def per_device(build: Any, dtype: Any, mapped: Any) -> dict[str, Any]:
    """Run a step on each device's own params, with the mean of all gradients."""
    tx = build()
    steps = 2 if isinstance(tx, optax.MultiSteps) else 1  # It updates with the second.

    def step(params: Any, batch: Any) -> Any:
        state = tx.init(params)
        for _ in range(steps):
            grads = jax.tree_util.tree_map(lambda p: (p * batch[0]).astype(p.dtype), params)
            updates, state = tx.update(jax.lax.pmean(grads, "data"), state, params)
            params = optax.apply_updates(params, updates)
        return params

    # One row for each device: shard_map splits the rows, pmap maps over them.
    params = {name: jnp.full((8, *shape), 0.5, dtype) for name, shape in SHAPES.items()}
    batch = jnp.arange(8, dtype=jnp.float32).reshape(8, 1) / 8
    compiled = mapped(step).lower(params, batch).compile()
    after = compiled(params, batch)
    return {
        "moved": sorted(MOVED.findall(compiled.as_text())),
        "values": np.asarray(after["w"], np.float64).ravel()[:8].tolist(),
    }


def in_shard_map(step: Any) -> Any:
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    spec = PartitionSpec("data")
    # Unchecked: the state of ``init`` does not vary by device, that of ``update`` does.
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def in_pmap(step: Any) -> Any:
    return jax.pmap(step, axis_name="data")


def main() -> None:
    mesh = Mesh(np.asarray(jax.devices()).reshape(4, 2), ("data", "model"))
    names = sys.argv[1:] or [*BUILDS, *FROM_SHAPES]
    found = {
        f"{name} {dtype}": measure(build, dtype, mesh)
        for name, build in BUILDS.items()
        if name in names
        for dtype in ("float32", "bfloat16")
    }
    found.update(
        (f"{name} {dtype} {mapped.__name__}", per_device(build, dtype, mapped))
        for name, build in BUILDS.items()
        if name in names
        for mapped, dtype in (
            (in_shard_map, "float32"),
            (in_shard_map, "bfloat16"),
            (in_pmap, "float32"),
        )
        # ``pmap`` runs what ``shard_map`` runs: one of each sort is enough.
        if mapped is in_shard_map or name in ("adamw", "MultiSteps")
    )
    from_shapes = {
        f"{name} {dtype}": moved_from_shapes(build, dtype, mesh)
        for name, build in FROM_SHAPES.items()
        if name in names
        for dtype in ("float32", "bfloat16", "float16")
    }
    print(json.dumps({"steps": found, "from shapes": from_shapes}))


if __name__ == "__main__":
    main()
