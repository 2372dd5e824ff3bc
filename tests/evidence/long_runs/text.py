"""A small transformer that predicts the characters of Python's own documentation."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

STEPS, BATCH, LENGTH = 3000, 16, 64
CHARACTERS, WIDTH, HEADS, LAYERS = 128, 64, 4, 2


def batches() -> Any:
    """Return the characters of each step: ``LENGTH`` to read, each with the next to predict."""
    text = np.frombuffer("".join(topics.values()).encode("ascii", "replace"), np.uint8)
    starts = np.random.default_rng(0).integers(0, len(text) - LENGTH, size=(STEPS, BATCH))
    return text[starts[..., None] + np.arange(LENGTH + 1)]


def start(dtype: Any) -> Any:
    """Return the initial params."""
    random = np.random.default_rng(1)

    def matrix(rows: int, columns: int) -> Any:
        return jnp.asarray(random.normal(size=(rows, columns)) / rows**0.5, dtype)

    def layer() -> dict[str, Any]:
        return {
            "qkv": matrix(WIDTH, 3 * WIDTH),
            "out": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH),
            "scales": jnp.ones((2, WIDTH), dtype),
        }

    return {
        "characters": matrix(CHARACTERS, WIDTH),
        "places": matrix(LENGTH, WIDTH),
        "layers": [layer() for _ in range(LAYERS)],
        "scale": jnp.ones(WIDTH, dtype),
        "logits": matrix(WIDTH, CHARACTERS),
    }


def loss_of(params: Any, text: Any) -> Any:
    """Compute the mean loss: up to the logits in the dtype of the params, then in float32."""
    x = params["characters"][text[:, :-1]] + params["places"]
    for layer in params["layers"]:
        x += attention(layer, normalized(x, layer["scales"][0]))
        x += jax.nn.gelu(normalized(x, layer["scales"][1]) @ layer["up"]) @ layer["down"]
    logits = normalized(x, params["scale"]) @ params["logits"]
    log_probabilities = jax.nn.log_softmax(at_least_float32(logits))
    return -jnp.take_along_axis(log_probabilities, text[:, 1:, None], -1).mean()


def attention(layer: Any, x: Any) -> Any:
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(*x.shape[:2], HEADS, -1), 3, -1)
    weights = jnp.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    weights = jnp.where(jnp.tri(x.shape[1], dtype=bool), at_least_float32(weights), -jnp.inf)
    weights = jax.nn.softmax(weights).astype(x.dtype)
    return jnp.einsum("bhij,bjhd->bihd", weights, v).reshape(x.shape) @ layer["out"]


def normalized(x: Any, scale: Any) -> Any:
    wide = at_least_float32(x)
    return (wide / jnp.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def at_least_float32(x: Any) -> Any:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
