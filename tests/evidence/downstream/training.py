"""Train a little with some optimizers, from or to checkpoints; print JSON by name.

It prints the params, or with ``--dtypes`` the dtypes of the state.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import orbax.checkpoint as ocp

BUILDS = {
    "adam": lambda: optax.adam(0.1),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "prodigy": optax.contrib.prodigy,
    "schedule_free": lambda: optax.contrib.schedule_free_sgd(0.1),
    "inject": lambda: optax.inject_hyperparams(optax.sgd)(0.1),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dtype")
    parser.add_argument("steps", type=int)
    parser.add_argument("--save")
    parser.add_argument("--restore")
    parser.add_argument("--dtypes", action="store_true")
    asked = parser.parse_args()
    print(json.dumps({name: train(name, asked) for name in BUILDS}))


def train(name: str, asked: argparse.Namespace) -> list[Any]:
    tx = BUILDS[name]()
    params = {"w": jnp.linspace(-1, 1, 6).reshape(2, 3).astype(asked.dtype)}
    carry = params, tx.init(params)
    checkpointer = ocp.PyTreeCheckpointer()
    if asked.restore:
        # With the saved dtypes: the restored state gives only the structure.
        saved = jax.tree_util.tree_leaves(checkpointer.restore(f"{asked.restore}/{name}"))
        structure = jax.tree_util.tree_structure(carry)
        carry = jax.tree_util.tree_unflatten(structure, map(jnp.asarray, saved))

    @jax.jit
    def step(params: object, state: object) -> object:
        grads = jax.tree_util.tree_map(lambda p: p - 0.5, params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(asked.steps):
        carry = step(*carry)
    if asked.save:
        flat = dict(enumerate(jax.tree_util.tree_leaves(carry)))
        checkpointer.save(
            f"{asked.save}/{name}", {f"{index:03}": leaf for index, leaf in flat.items()}
        )
    if asked.dtypes:
        return [str(leaf.dtype) for leaf in jax.tree_util.tree_leaves(carry[1])]
    values: list[float] = np.asarray(carry[0]["w"], np.float32).ravel().tolist()
    return values


if __name__ == "__main__":
    main()
