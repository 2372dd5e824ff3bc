"""Count what eager steps trace and compile, and print their bits, for two processes to compare.

``python -m support.eager_steps [NAME...]`` prints JSON: for each transformation, or those named, in
each mix of dtypes, how often each step traces and compiles, and the bits of its updates and state.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np

from evidence.audit.cases import Case, cases
from evidence.audit.measure import extra_args_of

STEPS = 5
DTYPES: dict[str, tuple[Any, Any]] = {
    "float32": (jnp.float32, jnp.float32),
    "bfloat16": (jnp.bfloat16, jnp.bfloat16),
    "mixed": (jnp.bfloat16, jnp.float32),
}
EVENTS: list[str] = []


def count(event: str, *_: Any, **__: Any) -> None:
    if "/compile/" in event:
        EVENTS.append(event)


def tree(dtypes: tuple[Any, Any], case: Case, seed: int, *, batch: bool = False) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    first = (2,) if batch and case.per_example else ()
    shapes = {"w": (*first, 3, 4), "b": (*first, 4)}
    return {
        name: jnp.asarray(random.integers(-64, 64, shape) / 32, dtype)
        for (name, shape), dtype in zip(shapes.items(), dtypes)
    }


def bits_of(outputs: Any) -> str:
    digest = hashlib.sha256()
    for array in map(np.asarray, jax.tree_util.tree_leaves(outputs)):
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:12]


def measured(case: Case, dtypes: tuple[Any, Any]) -> dict[str, Any]:
    steps: list[int] = []
    bits: list[str] = []
    try:
        tx, params = case.build(), tree(dtypes, case, 0)
        state = tx.init(params)
        for seed in range(1, STEPS + 1):
            grads = tree(dtypes, case, seed, batch=True)
            extra_args = extra_args_of(case, params, grads)
            before = len(EVENTS)
            updates, state = tx.update(grads, state, params, **extra_args)
            steps.append(len(EVENTS) - before)
            bits.append(bits_of((updates, state)))
    except Exception as error:
        return {"error": type(error).__name__}
    return {"events": steps, "bits": bits}


def compare(stock: dict[str, Any], patched: dict[str, Any]) -> tuple[list[str], list[str]]:
    """List cells with other bits in float32, and cells that compile more from the third step on."""
    runs = [cell for cell, found in stock.items() if "error" not in found]
    assert len(runs) > 0.9 * len(stock)
    bits = [c for c in runs if c.endswith("float32") and stock[c]["bits"] != patched[c].get("bits")]
    more = [
        cell
        for cell in runs
        if any(a < b for a, b in zip(stock[cell]["events"][2:], patched[cell]["events"][2:]))
    ]
    return bits, more


def main(only: tuple[str, ...]) -> None:
    jax.monitoring.register_event_duration_secs_listener(count)
    found = {
        f"{case.name}, {name}": measured(case, dtypes)
        for name, dtypes in DTYPES.items()
        for case in cases(only)
        if not case.inside and case.rate in ("", "float")
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
