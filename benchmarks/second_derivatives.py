"""Train a small net whose loss holds second derivatives, as that of a PINN does.

Run as ``python benchmarks/second_derivatives.py``, and with ``OPTAX_DTYPEFIX=off`` for stock. It
prints the median loss of five seeds, the mean over the last 200 of 3,000 steps: with params in
float32 and bfloat16, with ``master_weights``, and with params that the loss casts to float32.
"""

from __future__ import annotations

import optax_dtypefix  # isort: skip  # First, as in a training script.

import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

SIZES, STEPS, LAST, POINTS, SEEDS = (1, 32, 32, 1), 3000, 200, 64, 5


def start(seed: int, dtype: str) -> Any:
    """Return a weight and a bias for each layer."""
    random = np.random.default_rng(seed)
    return [
        (jnp.asarray(random.normal(size=(ins, outs)) / np.sqrt(ins), dtype), jnp.zeros(outs, dtype))
        for ins, outs in zip(SIZES, SIZES[1:])
    ]


def solution(params: Any, x: Any) -> Any:
    """Return u(x), which is 0 at 0 and at 1."""
    *hidden, (weight, bias) = params
    layer = x[None]
    for each in hidden:
        layer = jnp.tanh(layer @ each[0] + each[1])
    return x * (1 - x) * (layer @ weight + bias)[0]


def loss_of(params: Any, x: Any, *, cast: bool) -> Any:
    """Return the mean square of u'' + pi^2 sin(pi x), at some points."""
    if cast:
        params = jax.tree_util.tree_map(lambda leaf: leaf.astype(jnp.float32), params)
    x = x.astype(params[0][0].dtype)
    curvature = jax.grad(jax.grad(solution, 1), 1)
    bent = jax.vmap(functools.partial(curvature, params))(x).astype(jnp.float32)
    return jnp.mean((bent + jnp.pi**2 * jnp.sin(jnp.pi * x.astype(jnp.float32))) ** 2)


def train(seed: int, dtype: str, wrap: Callable[[Any], Any], cast: bool) -> float:
    """Return the final loss."""
    tx = wrap(optax.adam(optax.cosine_decay_schedule(3e-3, STEPS)))

    def step(carry: Any, key: Any) -> Any:
        params, state = carry
        x = jax.random.uniform(key, (POINTS,))
        loss, grads = jax.value_and_grad(functools.partial(loss_of, cast=cast))(params, x)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), loss

    params = start(seed, dtype)
    keys = jax.random.split(jax.random.PRNGKey(seed), STEPS)
    losses = jax.jit(lambda carry: jax.lax.scan(step, carry, keys)[1])((params, tx.init(params)))
    return float(losses[-LAST:].mean())


def main() -> None:
    """Train in each way."""
    ways: dict[str, tuple[str, Callable[[Any], Any], bool]] = {
        "float32": ("float32", lambda tx: tx, False),
        "bfloat16": ("bfloat16", lambda tx: tx, False),
        "bfloat16, master_weights": ("bfloat16", optax_dtypefix.master_weights, False),
        "bfloat16, cast": ("bfloat16", lambda tx: tx, True),
        "bfloat16, cast, master_weights": ("bfloat16", optax_dtypefix.master_weights, True),
    }
    for name, way in ways.items():
        losses = [train(seed, *way) for seed in range(SEEDS)]
        print(f"{name}: {np.median(losses):.2g}", flush=True)


if __name__ == "__main__":
    main()
