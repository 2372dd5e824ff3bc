"""Print programs, results and states as JSON, for two processes to compare.

``python -m support.programs ID...`` makes the programs of each named patch with this patch alone,
and their states with all patches; with ``OPTAX_DTYPEFIX=off``, on stock optax.
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

from optax_dtypefix.patches import IDS
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


def lowered(case: Program) -> tuple[Any, Any]:
    """Lower ``init`` and ``update``, as JAX gives them to XLA, without debug information."""
    tx, params = case.build(), tree_of(case.dtype, 0)

    def init(params: Any) -> Any:
        return tx.init(params)

    def step(grads: Any, state: Any, params: Any) -> Any:
        return tx.update(grads, state, params)

    state = jax.eval_shape(init, params)
    return jax.jit(init).lower(params), jax.jit(step).lower(params, state, params)


def program_and_bits(case: Program) -> dict[str, Any]:
    """Return the program, lowered or compiled, and the bits of a few steps if it was compiled.

    Equal programs have equal results, so there is no need to run them.
    """
    if case.same == "state":
        return {}
    if case.same == "program":
        return {"program": [part.as_text() for part in lowered(case)]}
    init, step = (part.compile() for part in lowered(case))
    params = tree_of(case.dtype, 0)
    state = init(params)
    outputs = []
    for seed in range(STEPS):
        updates, state = step(tree_of(case.dtype, seed + 1), state, params)
        params = tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        outputs += jax.tree_util.tree_leaves((updates, state))
    program = [without_metadata(part.as_text()) for part in (init, step)]
    return {"program": program, "bits": [np.asarray(leaf).tobytes().hex() for leaf in outputs]}


def main(patch_ids: list[str]) -> None:
    found: dict[str, dict[str, Any]] = {}
    for patch_id in patch_ids:
        with optax_dtypefix.disabled(*(other for other in IDS if other != patch_id)):
            cases = programs(patch_id).items()
            found[patch_id] = {name: program_and_bits(case) for name, case in cases}
    for patch_id, cases in found.items():
        for name, case in programs(patch_id).items():
            cases[name]["state"] = state(case)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
