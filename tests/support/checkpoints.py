"""Optimizer states as leaves in a file, from stock to patched and back.

``python -m support.checkpoints FOLDER`` migrates the states of ``FOLDER/patched.pickle``, prints in
what they differ from new ones, and writes states of its own to ``FOLDER/stock.pickle``.
"""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import optax_dtypefix  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax

leaves = jax.tree_util.tree_leaves


def _inject(**rates: Any) -> Any:
    return optax.inject_hyperparams(optax.adam)(**(rates or {"learning_rate": 0.01}))


def _nested() -> Any:
    def chained(scale: Any) -> Any:
        return optax.chain(_inject(), optax.scale(scale))

    return optax.chain(optax.clip(1.0), optax.inject_hyperparams(chained)(0.7))


def _labelled() -> Any:
    labels = {"w": "adam", "b": "sgd"}
    return optax.multi_transform({"adam": _inject(), "sgd": optax.sgd(0.1)}, labels)


def _scheduled() -> Any:
    return _inject(learning_rate=optax.linear_schedule(0.1, 0.01, 7))


CASES: dict[str, Any] = {
    "inject": _inject,
    "nested": _nested,
    "labelled": _labelled,
    "MultiSteps": lambda: optax.MultiSteps(_inject(), 2),
    "apply_if_finite": lambda: optax.apply_if_finite(_inject(), 3),
    "scheduled": _scheduled,
    "adam": lambda: optax.adam(0.01),
}
for _name in ("prodigy", "schedule_free_sgd"):
    if _build := getattr(getattr(optax, "contrib", None), _name, None):
        CASES[_name] = _build

PARAMS = {
    "bfloat16": {"w": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.ones(3, jnp.bfloat16)},
    "float16": {"w": jnp.ones((2, 3), jnp.float16), "b": jnp.ones(3, jnp.float16)},
    "float32": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)},
    # Up to 0.2.7, stock keeps hyperparameters in the dtype of the first leaf: all are 0.
    "integer": {"b": jnp.ones(3, jnp.int32), "w": jnp.ones((2, 3), jnp.bfloat16)},
}


def new_states() -> dict[str, list[Any]]:
    """Return the leaves of a new state of each case and dtype."""
    return {
        f"{name}, {dtype}": list(map(np.asarray, leaves(build().init(params))))
        for name, build in CASES.items()
        for dtype, params in PARAMS.items()
    }


def main() -> None:
    warnings.simplefilter("ignore")  # Stock optax warns of deprecations.
    folder = Path(sys.argv[1])
    written = pickle.loads((folder / "patched.pickle").read_bytes())
    (folder / "stock.pickle").write_bytes(pickle.dumps(new_states()))
    print(json.dumps({name: _migrated(name, flat) for name, flat in written.items()}))


def _migrated(name: str, flat: list[Any]) -> Any:
    case, _, dtype = name.partition(", ")
    tx, params = CASES[case](), PARAMS[dtype]
    structure: Any = jax.tree_util.tree_structure(tx.init(params))
    return migrated(tx, params, structure.unflatten(flat))


def migrated(tx: Any, params: Any, restored: Any) -> Any:
    """Migrate a state; return in what it is unlike a new state, and the kinds of changes."""
    state, changes = optax_dtypefix.migrate_state(tx, params, restored)
    unlike = [
        f"{was} {was.dtype} instead of {wanted} {wanted.dtype}"
        for was, wanted in zip(
            map(np.asarray, leaves(state)), map(np.asarray, leaves(tx.init(params)))
        )
        if was.dtype != wanted.dtype or not np.array_equal(was, wanted)
    ]
    return {"unlike a new state": unlike, "kinds": sorted({change.kind for change in changes})}


if __name__ == "__main__":
    main()
