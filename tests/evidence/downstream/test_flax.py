"""flax: ``TrainState`` and ``nnx.Optimizer``."""

from __future__ import annotations

import inspect
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import optax_dtypefix

INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(16, 3)), jnp.bfloat16)
TAKES_MODEL = "model" in inspect.signature(nnx.Optimizer.update).parameters  # From 0.11 on.
TARGETS = INPUTS.sum(1, keepdims=True)


def loss_of(predictions: Any) -> Any:
    return jnp.mean((predictions - TARGETS).astype(jnp.float32) ** 2)


def test_train_state_with_accumulated_gradients_in_bfloat16() -> None:
    """In stock optax 0.2.8 this diverges: b2 = 0.999 is 1 in bfloat16."""
    model = nn.Dense(1, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)
    tx = optax.MultiSteps(optax.inject_hyperparams(optax.adam)(0.05), 2)
    params = model.init(jax.random.PRNGKey(0), INPUTS)
    traces = []

    @jax.jit
    def step(state: Any) -> Any:
        traces.append(None)
        value, grads = jax.value_and_grad(lambda p: loss_of(state.apply_fn(p, INPUTS)))(
            state.params
        )
        return state.apply_gradients(grads=grads), value

    def train(state: Any) -> list[float]:
        losses = []
        for _ in range(60):
            state, value = step(state)
            losses.append(float(value))
        return losses

    losses = train(TrainState.create(apply_fn=model.apply, params=params, tx=tx))
    assert losses[-1] < 0.2 * losses[0]
    assert len(traces) == 1
    with optax_dtypefix.disabled():
        tx = optax.MultiSteps(optax.inject_hyperparams(optax.adam)(0.05), 2)
        losses = train(TrainState.create(apply_fn=model.apply, params=params, tx=tx))
    assert not losses[-1] < 0.2 * losses[0]


def test_nnx_optimizer_in_bfloat16() -> None:
    model = nnx.Linear(3, 1, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.contrib.schedule_free_adamw(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        value, grads = nnx.value_and_grad(lambda m: loss_of(m(INPUTS)))(model)
        optimizer.update(*((model, grads) if TAKES_MODEL else (grads,)))
        return value

    losses = [float(step(model, optimizer)) for _ in range(60)]
    assert losses[-1] < 0.2 * losses[0]
    (weight_sum,) = jax.tree_util.tree_leaves(optimizer.opt_state.weight_sum)
    assert weight_sum.dtype == jnp.float32
    assert model.kernel.value.dtype == jnp.bfloat16


@pytest.mark.skipif(not hasattr(nnx, "as_pure"), reason="as_pure came with flax 0.12")
def test_the_state_of_an_nnx_optimizer_is_migrated() -> None:
    make = optax.contrib.prodigy
    model = nnx.Linear(3, 1, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    with optax_dtypefix.disabled():
        optimizer = nnx.Optimizer(model, make(), wrt=nnx.Param)
    params, restored = map(nnx.as_pure, (nnx.state(model, nnx.Param), optimizer.opt_state))
    state, changes = optax_dtypefix.migrate_state(make(), params, restored)
    assert {change.kind for change in changes} == {"replaced", "cast"}
    structure = jax.tree_util.tree_structure(optimizer.opt_state)
    again = structure.unflatten(jax.tree_util.tree_leaves(state))
    assert float(again.estim_lr[...]) == np.float32(1e-6)


def test_flax_rounds_params_stochastically() -> None:
    """Both call ``optax.apply_updates``. On stock the params stay at 1."""
    grads = {"w": jnp.linspace(0.9e-3, 1.1e-3, 64)}

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.ones(64, jnp.bfloat16))

    def trained(steps: int = 100) -> tuple[Any, Any]:
        state = TrainState.create(
            apply_fn=None, params={"w": jnp.ones(64, jnp.bfloat16)}, tx=optax.sgd(1.0)
        )
        model = Model()
        optimizer = nnx.Optimizer(
            model, optax.sgd(1.0), **({"wrt": nnx.Param} if TAKES_MODEL else {})
        )

        def loss(model: Any) -> Any:
            return jnp.sum(model.w.value.astype(jnp.float32) * grads["w"])

        for _ in range(steps):
            state = state.apply_gradients(grads=grads)
            of_model = nnx.grad(loss)(model)
            optimizer.update(*((model, of_model) if TAKES_MODEL else (of_model,)))
        return state.params["w"], model.w.value

    with optax_dtypefix.disabled("stochastic_rounding"):
        assert [float(leaf.astype(jnp.float32).mean()) for leaf in trained()] == [1, 1]
    for leaf in trained():
        assert leaf.dtype == jnp.bfloat16
        assert float(leaf.astype(jnp.float32).mean()) == pytest.approx(0.9, abs=0.004)
