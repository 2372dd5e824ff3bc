from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_dtypefix._contract.x64 import x64
from support.contract import assert_keeps_the_contract, float64_in
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.transformations import warm_up
from support.trees import in_float64, tree_map, tree_of

FUZZ = FuzzCase(lambda draw: optax.fromage(draw.rate(), min_norm=draw.of(1e-6, 0.0)))
PROGRAMS = {
    "number": Program(lambda: optax.fromage(0.1)),
    "number bfloat16": Program(lambda: optax.fromage(0.1), jnp.bfloat16),
    "schedule": Program(
        lambda: optax.fromage(optax.linear_schedule(0.01, 0.1, 10)), releases=">=0.2.7"
    ),
    "schedule bfloat16": Program(
        lambda: optax.fromage(optax.linear_schedule(0.01, 0.1, 10)),
        jnp.bfloat16,
        ">=0.2.6",
        same="state",
    ),
}

STEPS = 8


def reference(params: Any, gradients: list[Any], min_norm: float = 1e-6) -> Any:
    """Run Fromage in float64, as in the paper: (p - lr g |p| / |g|) / sqrt(1 + lr^2)."""
    params = in_float64(params)
    for count, grads in enumerate(map(in_float64, gradients)):
        lr = 0.1 * min(1.0, (count + 1) / 5.0)
        for name, p in params.items():
            g = grads[name]
            ratio = max(np.linalg.norm(p), min_norm) / max(np.linalg.norm(g), min_norm)
            params[name] = (p - lr * g * ratio) / np.sqrt(1 + lr**2)
    return params


def train(tx: Any, params: Any, gradients: list[Any]) -> Any:
    state, step = tx.init(params), jax.jit(tx.update)
    for grads in gradients:
        updates, state = step(grads, state, params)
        params = tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates)
    return params


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(jnp.float32, 2e-6), (jnp.bfloat16, 3e-2), (jnp.float16, 4e-3)]
)
def test_a_schedule_follows_the_paper(dtype: Any, tolerance: float) -> None:
    params = tree_of(dtype)
    gradients = [tree_of(dtype, seed=i + 1) for i in range(STEPS)]
    got = train(optax.fromage(warm_up), params, gradients)
    for name, expected in reference(params, gradients).items():
        np.testing.assert_allclose(in_float64(got[name]), expected, rtol=tolerance, atol=tolerance)


def test_float32_results_are_those_of_0_2_8() -> None:
    params = tree_of(jnp.float32)
    gradients = [tree_of(jnp.float32, seed=i + 1) for i in range(STEPS)]
    got = train(optax.fromage(warm_up), params, gradients)["b"]
    # Printed by stock optax 0.2.8 on jax 0.10.2, CPU. Another XLA may differ in the last bit.
    of_0_2_8 = [-2.092623949050903, -0.2910480499267578, -0.8553281426429749, -1.0788391828536987]
    np.testing.assert_allclose(np.asarray(got), np.asarray(of_0_2_8, np.float32), rtol=2e-7)


def test_a_schedule_gives_no_float64_in_64_bit_mode() -> None:
    with x64():
        tx = optax.fromage(lambda count: jnp.asarray(0.1, jnp.float64) / (count + 1))
        params = tree_of(jnp.float32)
        assert_keeps_the_contract(tx, params)

        def step(params: Any) -> Any:
            return tx.update(params, tx.init(params), params)[0]

        # Only the scalars of the user-defined schedule are float64.
        assert set(float64_in(step, params)) == {()}


@pytest.mark.parametrize("grads", one_of(2, ["bfloat16", "float16"]))
@pytest.mark.parametrize("rate", one_of(2, [warm_up, 0.02]), ids=["schedule", "number"])
def test_float32_params_with_narrow_gradients_get_float32_updates(grads: Any, rate: Any) -> None:
    params, narrow = tree_of(jnp.float32), tree_of(grads, seed=1)
    tx = optax.fromage(rate)
    got, _ = tx.update(narrow, tx.init(params), params)
    wide = tree_map(lambda leaf: leaf.astype(jnp.float32), narrow)
    expected, _ = tx.update(wide, tx.init(params), params)
    for name, leaf in got.items():
        assert leaf.dtype == jnp.float32
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-5, atol=1e-8)


def test_params_are_required() -> None:
    tx = optax.fromage(warm_up)
    grads = tree_of(jnp.float32)
    with pytest.raises(ValueError, match="params"):
        tx.update(grads, tx.init(grads))
