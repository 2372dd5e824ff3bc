"""Transformations and schedules that a user could write."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax

from support.trees import leaves, tree_map


def drifting() -> Any:
    """Change the dtypes of updates and state, as a user-defined transformation may."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        total = tree_map(lambda g, t: jnp.asarray(g, jnp.float32) + t, grads, state)
        return total, total

    return optax.GradientTransformation(lambda params: tree_map(jnp.zeros_like, params), update)


def averaging(start: Any) -> Any:
    """Keep the mean of the gradients of the last leaf in a state with this start."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return grads, 0.5 * state + 0.5 * leaves(grads)[-1].mean()

    return optax.GradientTransformation(lambda _: start, update)


def with_value(tx: Any, value: Any = None, name: str = "value") -> Any:
    """Pass a loss to a transformation, by default one of the params."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        loss = jnp.sum(params["w"] ** 2) if value is None else value
        return tx.update(grads, state, params, **{name: loss})

    return optax.GradientTransformation(tx.init, update)


def warm_up(count: Any) -> Any:
    """Rise to 0.1 in five steps, strongly typed float32 as most schedules of optax."""
    return jnp.asarray(0.1, jnp.float32) * jnp.minimum(1.0, (count + 1) / 5.0)
