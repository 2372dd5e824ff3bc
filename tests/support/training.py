"""Train a little."""

from __future__ import annotations

from typing import Any, Callable

import jax

from support.trees import tree_map


def train(tx: Any, params: Any, goal: Any, steps: int, look: Callable[[Any], Any]) -> Any:
    """Minimize |x - goal|^2 / 2; return params, state, and ``look(state)`` of every step."""

    def step(carry: Any, _: None) -> Any:
        params, state = carry
        grads = tree_map(lambda p, t: (p - t).astype(p.dtype), params, goal)
        updates, state = tx.update(grads, state, params)
        params = tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        return (params, state), look(state)

    carry = params, tx.init(params)
    return jax.jit(lambda c: jax.lax.scan(step, c, None, length=steps))(carry)
