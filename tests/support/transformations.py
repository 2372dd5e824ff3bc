"""Transformations that a user could write."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax

from support.trees import tree_map


def drifting() -> Any:
    """Changes the dtypes of updates and state, as a careless transformation of a user may."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        total = tree_map(lambda g, t: jnp.asarray(g, jnp.float32) + t, grads, state)
        return total, total

    return optax.GradientTransformation(lambda params: tree_map(jnp.zeros_like, params), update)


def with_value(tx: Any, value: Any = None, name: str = "value") -> Any:
    """Pass a loss to a transformation, by default one of the params."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        loss = jnp.sum(params["w"] ** 2) if value is None else value
        return tx.update(grads, state, params, **{name: loss})

    return optax.GradientTransformation(tx.init, update)
