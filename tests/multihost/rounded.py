"""Round params and moments on all devices; print programs and bits as JSON."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BUILDS = {
    "sgd": lambda: optax.sgd(1e-2),
    "momentum": lambda: optax.sgd(1e-2, momentum=0.9),
    "rmsprop": lambda: optax.rmsprop(1e-3),
    "adagrad": lambda: optax.adagrad(1e-2),
}
WITHOUT_COUNTER = {
    "momentum": BUILDS["momentum"],
    "adagrad": BUILDS["adagrad"],
    "sm3": lambda: optax.sm3(1e-2),
}
COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
)


def bits(tree: Any) -> str:
    leaves = jax.tree_util.tree_leaves(tree)
    return hashlib.md5(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def tree(scale: float, seed: int) -> Any:
    random = np.random.default_rng(seed)
    shapes = {"w": (16, 8), "b": (8,), "n": ()}
    return {
        name: jnp.asarray(random.normal(size=shape) * scale, jnp.bfloat16)
        for name, shape in shapes.items()
    }


def measure(build: Any, mesh: Mesh) -> dict[str, Any]:
    """Run three steps of sharded params."""
    params, tx = tree(1, 0), build()
    state = tx.init(params)

    def spread(leaf: Any) -> Any:
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*"x"[: jnp.ndim(leaf)])))

    params, state = jax.tree_util.tree_map(spread, (params, state))

    @jax.jit
    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    compiled = step.lower(params, state, params).compile()
    for seed in (1, 2, 3):
        grads = jax.tree_util.tree_map(spread, tree(0.1, seed))
        params, state = jax.tree_util.tree_map(spread, compiled(params, state, grads))
    collectives = sorted(set(COLLECTIVE.findall(compiled.as_text())))
    return {"collectives": collectives, "params": bits(params), "state": bits(state)}


def mapped(mesh: Mesh) -> dict[str, Any]:
    """Return the bits of replicas, and check those of shards."""
    params, updates, count = tree(1, 0), tree(1e-3, 1), len(jax.devices())
    copies = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * count), (params, updates))
    replicas = jax.pmap(optax.apply_updates)(*copies)
    of_replicas = {
        bits(jax.tree_util.tree_map(lambda leaf, at=at: leaf[at], replicas)) for at in range(count)
    }
    spec, w, u = PartitionSpec("x"), params["w"], updates["w"]
    in_shards = jax.jit(
        jax.shard_map(optax.apply_updates, mesh=mesh, in_specs=spec, out_specs=spec)
    )(w, u)
    rows = 16 // count
    alone = [optax.apply_updates(w[at : at + rows], u[at : at + rows]) for at in range(0, 16, rows)]
    on_two = {"w": jax.devices()[0], "b": jax.devices()[-1], "n": jax.devices()[0]}
    eager = optax.apply_updates(*(jax.device_put(given, on_two) for given in (params, updates)))
    return {
        "replicas": sorted(of_replicas),
        "shards have bits of their own": bits(in_shards) == bits(np.concatenate(alone)),
        "leaves stay on their devices": all(eager[n].devices() == {on_two[n]} for n in on_two),
    }


def beside_shards(build: Any, mesh: Mesh) -> dict[str, int]:
    """Count the different updates that the replicas of a param have, beside one in shards."""
    tx, count = build(), len(jax.devices())
    specs = {"shards": PartitionSpec("x"), "replicas": PartitionSpec()}
    random = np.random.default_rng(0)
    grads = {name: jnp.asarray(random.normal(size=(64, 2)), jnp.bfloat16) for name in specs}

    def step(grads: Any) -> Any:
        state = tx.init(grads)
        for _ in range(3):
            updates, state = tx.update(grads, state, grads)
        return updates

    def different(replicas: Any) -> int:
        return len({np.asarray(part.data).tobytes() for part in replicas.addressable_shards})

    def in_shard_map(*, check_vma: bool) -> int:
        mapped = jax.shard_map(
            step, mesh=mesh, in_specs=(specs,), out_specs=specs, check_vma=check_vma
        )
        return different(jax.jit(mapped)(grads)["replicas"])

    parts = {"shards": grads["shards"].reshape(count, -1, 2), "replicas": grads["replicas"]}
    axes = {"shards": 0, "replicas": None}
    return {
        "shard_map": in_shard_map(check_vma=True),
        "shard_map, not checked": in_shard_map(check_vma=False),
        "pmap": different(jax.pmap(step, in_axes=(axes,))(parts)["replicas"]),
    }


def main() -> None:
    mesh = Mesh(np.asarray(jax.devices()), ("x",))
    found: dict[str, Any] = {name: measure(build, mesh) for name, build in BUILDS.items()}
    beside = {name: beside_shards(build, mesh) for name, build in WITHOUT_COUNTER.items()}
    print(json.dumps({"runs": found, "mapped": mapped(mesh), "beside shards": beside}))


if __name__ == "__main__":
    main()
