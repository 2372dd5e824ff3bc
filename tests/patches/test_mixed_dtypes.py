"""The state keeps its dtypes by default where gradients and params differ, in any optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support.thorough import one_of
from support.trees import dtypes_of

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize("scale", one_of(3, [1e-6, 1e-3, 1.0]))
def test_small_wide_gradients_of_float16_params_give_the_updates_of_float32(scale: float) -> None:
    """In float16 their squares are 0, or 6e-8: stock makes the moment float32, and so do we."""
    random = np.random.default_rng(0)
    grads = jnp.asarray(scale * (1 + 0.3 * random.normal(size=(300, 16))), jnp.float32)
    updates = {}
    for dtype in (jnp.float16, jnp.float32):
        # That of adam stays in float16 on stock 0.2.8, and its updates are 20 times too large.
        tx, param = optax.scale_by_rms(), jnp.ones(16, dtype)
        state = tx.init(param)
        for grad in grads:
            updates[dtype], state = tx.update(grad, state, param)
    assert updates[jnp.float16].dtype == jnp.float32
    np.testing.assert_allclose(updates[jnp.float16], updates[jnp.float32], rtol=1e-3)


def test_a_float16_moment_stays_beside_a_wider_gradient_of_another_param() -> None:
    tx, params = optax.scale_by_rms(), {"a": jnp.ones(3, jnp.float16), "b": jnp.ones(3)}
    state = tx.init(params)
    _, after = tx.update(params, state, params)
    assert dtypes_of(after) == dtypes_of(state)
    _, after = tx.update({"a": jnp.ones(3), "b": jnp.ones(3)}, state, params)
    assert after.nu["a"].dtype == jnp.float32


@pytest.mark.parametrize(
    "build",
    one_of(3, [lambda: optax.trace(0.9), optax.scale_by_rms, optax.scale_by_adam]),
    ids=["trace", "rms", "adam"],
)
def test_narrow_moments_of_wide_gradients_follow_float32(build: Any) -> None:
    random, steps = np.random.default_rng(0), 1500
    grads = jnp.asarray(1 + 0.3 * random.normal(size=(steps, 32, 8)), jnp.float32)
    grads = grads * jnp.where(jnp.arange(steps) < 700, 1.0, 0.1)[:, None, None]
    found = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        param, tx = jnp.ones((32, 8), dtype), build()

        def step(state: Any, grad: Any, tx: Any = tx, param: Any = param) -> Any:
            updates, after = tx.update(grad, state, param)
            return after, updates

        first = tx.init(param)
        _, updates = jax.jit(lambda s, f=step: jax.lax.scan(f, s, grads))(first)
        assert updates.dtype == jnp.float32
        found[dtype] = np.asarray(updates[-1], float)
    right, narrow = found[jnp.float32], found[jnp.bfloat16]
    assert np.mean(np.abs(narrow - right)) <= 0.02 * np.mean(np.abs(right))
