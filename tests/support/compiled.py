"""Compile train steps, and compare compiled programs."""

from __future__ import annotations

import re
from typing import Any

import jax
import optax


def compiled_step(tx: Any, params: Any) -> Any:
    """Compile a step of an optimizer that donates params and state. Nothing is computed.

    Args:
      tx: a transformation.
      params: a tree of arrays, or of ``jax.ShapeDtypeStruct``. The gradients are like them.
    """
    state = jax.eval_shape(tx.init, params)

    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step, donate_argnums=(0, 1)).lower(params, state, params).compile()


def without_metadata(text: str) -> str:
    """Return a program without names of source files and lines, which the shim's frames change."""
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    return "\n".join(line for line in text.splitlines() if not re.match(r"\d+ |[A-Z]\w+$", line))
