"""Take steps on a mesh whose axes are automatic, then explicit; print bits and programs as JSON."""

from __future__ import annotations

import json
from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from multihost.rounded import COLLECTIVE, bits

SPECS = {"rows": ("x", None), "columns": (None, "x")}
LARGE, SMALL = (512, 256), (8,)
"""The corner of the first is its first row; that of the second is all of it."""


def sharded(mesh: Any, shape: tuple[int, ...], spec: tuple[Any, ...], seed: int) -> Any:
    numbers = np.random.default_rng(seed).normal(size=shape)
    array = jnp.asarray(numbers, jnp.bfloat16)
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))


def step_of(tx: Any, update: Any, apply_updates: Any) -> Any:
    def step(params: Any, grads: Any) -> Any:
        updates, state = update(grads, tx.init(params), params)
        return apply_updates(params, updates), state

    return step


def averaged(params: Any, grads: Any) -> Any:
    return optax.incremental_update(params, grads, 0.1)


def derivative(params: Any, grads: Any) -> Any:
    def loss(params: Any) -> Any:
        updates, _ = optax.sgd(0.1, momentum=0.9).update(grads, (optax.TraceState(params), None))
        return jnp.sum(optax.apply_updates(params, updates).astype(jnp.float32) ** 2)

    return jax.grad(loss)(params)


def mapped(params: Any, grads: Any) -> Any:
    """Take a step of each row of two stacked trees."""
    tx = optax.sgd(0.1, momentum=0.9)
    stacked = (jnp.stack([tree, tree * 0.5]) for tree in (params, grads))
    return jax.vmap(step_of(tx, tx.update, optax.apply_updates))(*stacked)


def ways() -> dict[str, Any]:
    adamw, momentum, sm3 = optax.adamw(0.1), optax.sgd(0.1, momentum=0.9), optax.sm3(0.1)
    jitted = jax.jit(optax.apply_updates)
    return {
        "adamw": jax.jit(step_of(adamw, adamw.update, optax.apply_updates)),
        "adamw, two jits": step_of(adamw, jax.jit(adamw.update), jitted),
        "momentum": jax.jit(step_of(momentum, momentum.update, optax.apply_updates)),
        "momentum, eager": step_of(momentum, momentum.update, optax.apply_updates),
        "sm3": jax.jit(step_of(sm3, sm3.update, optax.apply_updates)),
        "incremental_update": jax.jit(averaged),
        "derivative": jax.jit(derivative),
        "vmap": jax.jit(mapped),
    }


def measure(run: Any, mesh: Any, shape: tuple[int, ...], spec: tuple[Any, ...]) -> dict[str, Any]:
    given = tuple(sharded(mesh, shape, spec, seed) for seed in (0, 1))
    found: dict[str, Any] = {"bits": bits(run(*given))}
    if hasattr(run, "lower"):
        text = run.lower(*given).compile().as_text()
        found["collectives"] = sorted(COLLECTIVE.findall(text))
        whole = f"[{','.join(map(str, shape))}]"
        found["whole arrays"] = sum(f"{whole}{{" in line for line in text.splitlines()[1:])
    return found


def main() -> None:
    found: dict[str, Any] = {}
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,))
        with jax.set_mesh(mesh):
            for name, run in ways().items():
                of_kind = found.setdefault(name, {}).setdefault(kind.name, {})
                for place, spec in SPECS.items():
                    of_kind[place] = measure(run, mesh, LARGE, spec)
                of_kind["vector"] = measure(run, mesh, SMALL, ("x",))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
