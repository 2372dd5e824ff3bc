"""Gradients of each size, the updates for them over 300 steps, and the errors of these."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

STEPS, SHAPE = 300, (8, 8)
WINDOWS = {"10-99": slice(10, 100), "100-299": slice(100, STEPS)}
KINDS = ("normal", "sparse", "constant")
EXPONENTS = tuple(range(-13, 1))


def gradients(exponents: tuple[int, ...] = EXPONENTS, kinds: tuple[str, ...] = KINDS) -> Any:
    """Return the gradients of each step for each kind and each power of 2.

    They are exact in float16 and in bfloat16.
    """
    random = np.random.default_rng(0)
    normal = random.normal(size=(STEPS, *SHAPE))
    by_kind = {
        "normal": normal,
        "sparse": normal * (random.random(normal.shape) < 0.1),
        "constant": np.broadcast_to(normal[:1], normal.shape),
    }
    rows = np.stack([by_kind[kind] * 2.0**exponent for kind in kinds for exponent in exponents])
    return rows.astype(np.float16).astype(jnp.bfloat16)


def updates_of(tx: Any, rows: Any, dtype: Any) -> Any:
    """Return the updates for each row of gradients."""
    # Params that move, for what compares them with the first ones.
    path = 1 + 0.25 * jnp.sin(jnp.arange(STEPS, dtype=jnp.float32)).astype(jnp.bfloat16)

    def step(state: Any, now: Any) -> Any:
        grads, param = now
        updates, after = tx.update(grads.astype(dtype), state, jnp.full(SHAPE, param, dtype))
        # On stock some states change their dtypes.
        after = jax.tree_util.tree_map(lambda new, old: new.astype(old.dtype), after, state)
        # XLA on the CPU copies a stack in half precision in each step.
        return after, updates.astype(jnp.float32)

    def run(row: Any) -> Any:
        state = jax.tree_util.tree_map(jnp.asarray, tx.init(jnp.ones(SHAPE, dtype)))
        return jax.lax.scan(step, state, (row, path))[1]

    return np.asarray(jax.jit(jax.vmap(run))(rows))


def errors(updates: Any, reference: Any) -> dict[str, Any]:
    """Return the relative error of each row in each window."""
    found = {}
    for name, window in WINDOWS.items():
        got, exact = (x[:, window].astype(np.float64) for x in (updates, reference))
        with np.errstate(invalid="ignore"):
            error = np.abs(got - exact).sum((1, 2, 3)) / np.abs(exact).sum((1, 2, 3))
        found[name] = np.where(np.isnan(error), np.inf, error)
    return found
