"""Run the transformations with moments on the same gradients, and save their updates.

``python -m evidence.rounding.measure DTYPE FILE EXPONENT ...`` runs 300 steps. Each size of
gradients is 2 to the power of an exponent.
"""

from __future__ import annotations

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS, SHAPE = 300, (8, 8)
KINDS = ("normal", "sparse", "constant")


def _gradients(exponents: list[int]) -> Any:
    """Return gradients for each kind, size and step, exact in float16 and in bfloat16."""
    random = np.random.default_rng(0)
    normal = random.normal(size=(STEPS, *SHAPE))
    sparse = normal * (random.random(normal.shape) < 0.1)
    constant = np.broadcast_to(normal[:1], normal.shape)
    units = np.stack([normal, sparse, constant])[:, None]
    sized = units * 2.0 ** np.asarray(exponents)[None, :, None, None, None]
    return sized.astype(np.float16).astype(jnp.bfloat16).reshape(-1, STEPS, *SHAPE)


def transformations() -> dict[str, Any]:
    """Build the transformations with moments that the installed optax has."""
    contrib = getattr(optax, "contrib", None)

    def get(name: str) -> Any:
        return getattr(optax, name, None) or getattr(contrib, name, None)

    plain = (
        *("adam", "belief", "yogi", "radam", "rms", "stddev", "rss", "sm3", "factored_rms"),
        *("adamax", "amsgrad", "novograd", "adadelta", "adan", "acprop", "cocob", "ademamix"),
        *("simplified_ademamix", "adopt"),
    )
    made = {name: build() for name in plain if (build := get(f"scale_by_{name}"))}
    made["factors"] = optax.scale_by_factored_rms(min_dim_size_to_factor=2)
    made["rss from 0"] = optax.scale_by_rss(0.0)
    made["rms 0.99"] = optax.scale_by_rms(0.99)
    if optax.__version__ >= "0.2.4":
        made["rms corrected"] = optax.scale_by_rms(bias_correction=True)
        made["stddev corrected"] = optax.scale_by_stddev(bias_correction=True)
    if get("scale_by_madgrad"):
        made["madgrad"] = get("scale_by_madgrad")(1e-2)
    return made


def updates_of(tx: Any, gradients: Any, dtype: Any) -> Any:
    """Return the updates for each row of gradients."""
    # Params that move, for what compares them with the first ones.
    path = 1 + 0.25 * jnp.sin(jnp.arange(STEPS, dtype=jnp.float32)).astype(jnp.bfloat16)

    def step(state: Any, now: Any) -> Any:
        grads, param = now
        params = jnp.full(SHAPE, param, dtype)
        updates, after = tx.update(grads.astype(dtype), state, params)
        # Some states of stock change their dtypes.
        after = jax.tree_util.tree_map(lambda new, old: new.astype(old.dtype), after, state)
        return after, updates

    def run(gradients: Any) -> Any:
        state = jax.tree_util.tree_map(jnp.asarray, tx.init(jnp.ones(SHAPE, dtype)))
        return jax.lax.scan(step, state, (gradients, path))[1]

    return np.asarray(jax.jit(jax.vmap(run))(gradients), np.float32)


def main(dtype: str, file: str, *exponents: str) -> None:
    gradients = _gradients([int(exponent) for exponent in exponents])
    found = {}
    for name, tx in transformations().items():
        try:
            found[name] = updates_of(tx, gradients, jnp.dtype(dtype))
        except (TypeError, AttributeError) as error:
            print(name, dtype, str(error)[:100], file=sys.stderr)
    np.savez(file, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
