"""Measure trees of many leaves: ``init``, tracing, compiling and ``check``, in CPU seconds.

Run as ``scale.py TREE``, with ``OPTAX_DTYPEFIX=off`` for stock. Prints JSON.
"""

from __future__ import annotations

import optax_dtypefix  # isort: skip  # First, as in a training script.

import json
import os
import subprocess
import sys
import time
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

COMPILED = {"10 leaves": 10, "100 leaves": 100, "650 leaves": 650}
"""Trees of 60 shapes, as many as there are in a large vision model."""
TREES = ("10,000 leaves", "80 layers", *COMPILED)
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: optax.adamw(0.01),
    "MultiSteps(adamw)": lambda: optax.MultiSteps(optax.adamw(0.01), 4),
}


def params_of(tree: str) -> Any:
    """Return the shapes of one of the trees, in bfloat16; the layers are those of a transformer."""
    if tree in COMPILED:
        shapes = [(16 + n % 60, 8 + n % 60 % 13) for n in range(COMPILED[tree])]
        return {f"leaf {n}": jax.ShapeDtypeStruct(s, jnp.bfloat16) for n, s in enumerate(shapes)}
    if tree == "10,000 leaves":
        return {f"leaf {n}": jax.ShapeDtypeStruct((8, 8), jnp.bfloat16) for n in range(10_000)}
    width, shapes = 8192, {"attention": (4, 1), "mlp": (3, 4)}
    layer = {
        name: jax.ShapeDtypeStruct((copies, width, width * wider), jnp.bfloat16)
        for name, (copies, wider) in shapes.items()
    }
    norms = {name: jax.ShapeDtypeStruct((width,), jnp.bfloat16) for name in ("before", "after")}
    return [{**layer, **norms} for _ in range(80)]


def seconds(tree: str) -> dict[str, float]:
    """Return CPU seconds in this process."""
    found = {}
    params = params_of(tree)
    for name, build in OPTIMIZERS.items():
        tx = build()

        def step(params: Any, state: Any, grads: Any, tx: Any = tx) -> Any:
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        times = [time.process_time()]
        state = jax.eval_shape(tx.init, params)
        times.append(time.process_time())
        lowered = jax.jit(step).lower(params, state, params)
        times.append(time.process_time())
        if tree in COMPILED:
            lowered.compile()
        times.append(time.process_time())
        optax_dtypefix.check(tx, params)
        times.append(time.process_time())
        for verb, spent in zip(("init", "trace", "compile", "check"), np.diff(times)):
            if verb != "compile" or tree in COMPILED:
                found[f"{tree}, {name}, {verb}"] = float(f"{spent:.4g}")
    return found


def measure() -> dict[str, dict[str, float]]:
    """Return CPU seconds of stock and of patched processes, which run at the same time.

    Each tree has its own: the traces of a large one would be garbage that slows the other down.
    """
    found: dict[str, dict[str, float]] = {"stock": {}, "patched": {}}
    for tree in TREES:
        processes = {
            way: subprocess.Popen(
                [sys.executable, __file__, tree],
                env={**os.environ, "OPTAX_DTYPEFIX": switch},
                stdout=subprocess.PIPE,
                text=True,
            )
            for way, switch in {"stock": "off", "patched": "on"}.items()
        }
        for way, process in processes.items():
            found[way].update(json.loads(process.communicate()[0]))
    return found


if __name__ == "__main__":
    print(json.dumps(seconds(*sys.argv[1:])))
