"""Print, as JSON, what chains give whose links promote: dtypes, updates, what links see.

``python -m support.chains [NAME...]`` runs all chains, or those named, in all regimes.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS, SIZE = 60, 4
RATE = 1 / 128


def gradient(step: int, dtype: str, name: str) -> Any:
    """Return a gradient in a dtype: the same numbers for each, but for their rounding."""
    seed = step * 2 + (name == "b")
    return jnp.asarray(np.random.default_rng(seed).normal(1, 1, SIZE), jnp.float32).astype(dtype)


def wide() -> Any:
    """Return an array that promotes half precision."""
    return jnp.asarray(RATE, jnp.float32)


def looking(seen: list[list[str]]) -> Any:
    """Build the user's own transformation, which notes the dtypes that it is given."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        seen.append([str(leaf.dtype) for leaf in jax.tree_util.tree_leaves((updates, params))])
        return updates, state

    return optax.GradientTransformation(lambda _: (), update)


LABELS = {"a": "first", "b": "second"}
MOMENTS = {
    "adam": optax.scale_by_adam,
    "ema": lambda: optax.ema(0.9),
    "trace": lambda: optax.trace(0.9),
}


def chains(seen: list[list[str]]) -> dict[str, Any]:
    """Build chains in which a link promotes, and the next one has moments."""
    scale, look = optax.scale, looking(seen)
    found = {
        f"{moment}, {way}": optax.chain(*links, build(), look, scale(-0.1))
        for moment, build in MOMENTS.items()
        for way, links in {
            "alone": (),
            "scaled": (scale(wide()), look),
            "nested": (optax.chain(optax.chain(scale(wide()), look)),),
            "masked": (optax.masked(scale(wide()), {"a": True, "b": True}),),
            "in groups": (
                optax.multi_transform({"first": scale(wide()), "second": scale(wide())}, LABELS),
            ),
        }.items()
    }
    if hasattr(optax, "normalize_by_update_norm"):
        norm = optax.normalize_by_update_norm
        found["ema, normalized"] = optax.chain(norm(), look, optax.ema(0.9), scale(-0.1))
    if hasattr(optax, "named_chain"):
        links = {"scale": scale(wide()), "ema": optax.ema(0.9), "rate": scale(-0.1)}
        found["ema, named"] = optax.named_chain(*links.items())
    asks = optax.scale_by_adam(mu_dtype=jnp.float32)
    groups = {"first": asks, "second": scale(wide())}
    found["asked for"] = optax.chain(optax.multi_transform(groups, LABELS), scale(-0.1))
    found["asked for, scaled"] = optax.chain(scale(wide()), asks, scale(-0.1))
    return found


def steps(tx: Any, dtypes: dict[str, str], look: Any) -> dict[str, Any]:
    params = {name: jnp.ones(SIZE, dtype) for name, dtype in dtypes.items()}
    state = first = tx.init(params)
    update = jax.jit(tx.update)  # The dtypes that links see are looked at while it is traced.
    updates: Any = None
    for step in range(STEPS):
        grads = {name: gradient(step, dtype, name) for name, dtype in dtypes.items()}
        updates, state = update(grads, state, params)
    before, after = (
        [str(leaf.dtype) for leaf in jax.tree_util.tree_leaves(s)] for s in (first, state)
    )
    return {
        "dtypes": {name: str(leaf.dtype) for name, leaf in updates.items()},
        "updates": {name: np.asarray(leaf, np.float64).tolist() for name, leaf in updates.items()},
        "stable": before == after,
        "state": after,
        "saw": look[-1],
    }


def main() -> None:
    warnings.simplefilter("ignore")
    found = {}
    for way, dtypes in {
        "bfloat16": ("bfloat16", "bfloat16"),
        "mixed": ("bfloat16", "float32"),
        "float32": ("float32", "float32"),
    }.items():
        seen: list[list[str]] = [[]]
        for name, tx in chains(seen).items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            found[f"{name}, {way}"] = steps(tx, dict(zip("ab", dtypes)), seen)
            seen[:] = [[]]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
