"""Print compiled programs, results and states as JSON, for two processes to compare.

``python -m support.programs ID...`` compiles and runs the programs of each named patch with this
patch alone, and makes their states with all patches; with ``OPTAX_DTYPEFIX=off``, on stock optax.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import optax_dtypefix  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np

from support.compiled import without_metadata
from support.patch_cases import Program, programs
from support.trees import tree_map

STEPS = 4
STOCK = os.environ.get("OPTAX_DTYPEFIX") == "off"


def tree_of(dtype: Any, seed: int) -> dict[str, Any]:
    """Return a small tree of values that are exact in every float dtype."""
    random = np.random.default_rng(seed)
    shapes = {"b": (4,), "w": (3, 4)}
    return {
        name: jnp.asarray(random.integers(-64, 64, shape) / 32, dtype)
        for name, shape in shapes.items()
    }


def state(case: Program) -> list[str]:
    """Return classes, fields and shapes of a state, without dtypes."""
    shapes = jax.eval_shape(case.build().init, tree_of(case.dtype, 0))
    leaves, structure = jax.tree_util.tree_flatten(shapes)
    return [str(structure), *(str(leaf.shape) for leaf in leaves)]


def compiled(case: Program) -> dict[str, Any]:
    """Return the compiled step without debug information, and the bits of a few steps."""
    tx, params = case.build(), tree_of(case.dtype, 0)

    def init(params: Any) -> Any:
        return tx.init(params)

    def step(grads: Any, state: Any, params: Any) -> Any:
        return tx.update(grads, state, params)

    compiled_init = jax.jit(init).lower(params).compile()
    state = compiled_init(params)
    compiled_step = jax.jit(step).lower(params, state, params).compile()
    outputs = []
    for seed in range(STEPS):
        updates, state = compiled_step(tree_of(case.dtype, seed + 1), state, params)
        params = tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        outputs += jax.tree_util.tree_leaves((updates, state))
    program = [without_metadata(part.as_text()) for part in (compiled_init, compiled_step)]
    return {"program": program, "bits": [np.asarray(leaf).tobytes().hex() for leaf in outputs]}


def main(patch_ids: list[str]) -> None:
    found: dict[str, dict[str, Any]] = {}
    for patch_id in patch_ids:
        if not STOCK:
            optax_dtypefix.revert()
            optax_dtypefix.apply(patch_id)
        found[patch_id] = {
            name: compiled(case) if case.same != "state" else {}
            for name, case in programs(patch_id).items()
        }
    if not STOCK:
        optax_dtypefix.apply()
    for patch_id, cases in found.items():
        for name, case in programs(patch_id).items():
            cases[name]["state"] = state(case)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
