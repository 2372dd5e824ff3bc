"""equinox and optimistix: a train step, minimisers, and L-BFGS in a checkpointed scan."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix
import pytest

import optax_dtypefix
from optax_dtypefix._contract.x64 import x64

GOAL = jnp.asarray([1.0, -2.0, 0.5])


def distance(params: Any, _: Any = None) -> Any:
    return jnp.sum((params - GOAL.astype(params.dtype)) ** 2)


def test_a_filtered_train_step_in_bfloat16() -> None:
    model = jax.tree_util.tree_map(
        lambda leaf: leaf.astype(jnp.bfloat16) if eqx.is_inexact_array(leaf) else leaf,
        eqx.nn.MLP(2, 1, 8, 1, key=jax.random.PRNGKey(0)),
    )
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.inject_hyperparams(optax.adam)(0.02))
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(16, 2)), jnp.bfloat16)

    @eqx.filter_value_and_grad
    def loss(model: Any) -> Any:
        error = jax.vmap(model)(inputs)[:, 0] - inputs[:, 0]
        return jnp.mean(error.astype(jnp.float32) ** 2)

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        value, grads = loss(model)
        updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    losses = []
    for _ in range(80):
        model, state, value = step(model, state)
        losses.append(float(value))
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("build", [optax.adam, optax.inject_hyperparams(optax.adam)])
def test_optimistix_minimises(build: Any) -> None:
    solver = optimistix.OptaxMinimiser(build(0.1), rtol=1e-4, atol=1e-4)
    found = optimistix.minimise(distance, solver, jnp.zeros(3), max_steps=2000).value
    np.testing.assert_allclose(found, GOAL, atol=0.05)


def scanned(tx: Any, params: Any) -> Any:
    def body(carry: Any, _: None) -> Any:
        params, state = carry
        value, grads = jax.value_and_grad(distance)(params)
        updates, state = tx.update(grads, state, params, value=value, grad=grads, value_fn=distance)
        return (optax.apply_updates(params, updates), state), None

    carry = params, tx.init(params)
    return eqxi.scan(body, carry, None, length=8, kind="checkpointed", checkpoints=4)[0][0]


def test_lbfgs_in_a_checkpointed_scan_under_x64() -> None:
    """Upstream issue 1210."""
    with x64():
        for dtype in (jnp.float32, jnp.float64):
            found = scanned(optax.lbfgs(), jnp.zeros(3, dtype))
            np.testing.assert_allclose(found, GOAL, atol=1e-5)
        if optax.__version__ in ("0.2.3", "0.2.4"):
            with optax_dtypefix.disabled(), pytest.raises((TypeError, ValueError)):
                scanned(optax.lbfgs(), jnp.zeros(3, jnp.float64))


def test_equinox_rounds_the_arrays_of_a_model_as_optax_does() -> None:
    linear = eqx.nn.Linear(8, 8, key=jax.random.PRNGKey(0))
    model = jax.tree_util.tree_map(
        lambda leaf: jnp.ones_like(leaf, jnp.bfloat16) if eqx.is_array(leaf) else leaf, linear
    )
    updates = jax.tree_util.tree_map(
        lambda leaf: jnp.full(leaf.shape, 2.0**-10, jnp.bfloat16), eqx.filter(model, eqx.is_array)
    )
    by_optax = eqx.filter(model, eqx.is_array)
    for _ in range(64):
        model = eqx.apply_updates(model, updates)
        by_optax = optax.apply_updates(by_optax, updates)
    assert eqx.tree_equal(eqx.filter(model, eqx.is_array), by_optax)
    assert float(model.weight.astype(jnp.float32).mean()) == pytest.approx(1.0625, abs=0.002)
    with optax_dtypefix.disabled("stochastic_rounding"):
        ones = jax.tree_util.tree_map(jnp.ones_like, by_optax)
        assert eqx.tree_equal(eqx.apply_updates(ones, updates), ones)
