"""Trees and states as users have them: what runs on stock optax runs with the patches, too.

Each test passes with ``OPTAX_DTYPEFIX=off`` as well, at least on optax 0.2.3.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

# Old releases call deprecated functions of JAX.
pytestmark = [
    pytest.mark.rule("C0"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "schedule": lambda: optax.sgd(lambda _: 0.1),
    "adam": lambda: optax.adam(lambda _: 0.1),
    "array": lambda: optax.adam(jnp.float32(0.1)),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)),
    "rmsprop": lambda: optax.rmsprop(0.1),
    "if finite": lambda: optax.apply_if_finite(optax.adam(0.1), 2),
}


@pytest.mark.parametrize("place", ["a", "z"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_params_may_have_functions_among_their_leaves(name: str, place: str) -> None:
    """As an Equinox model has: its gradients have None there."""
    tx, weights = OPTIMIZERS[name](), jnp.ones((3, 4))
    params, grads = {"w": weights, place: jnp.tanh}, {"w": weights, place: None}
    state = tx.init(grads)
    for _ in range(2):
        updates, state = tx.update(grads, state, params)
        assert updates[place] is None
        assert updates["w"].dtype == jnp.float32
        assert bool(jnp.isfinite(updates["w"]).all() & (updates["w"] != 0).all())


def test_a_schedule_takes_its_count_by_name() -> None:
    warm_up = optax.warmup_cosine_decay_schedule(0.0, 1.0, 2, 10)
    assert float(warm_up(step=1)) == 0.5
    assert float(optax.exponential_decay(1.0, 1, 0.5)(count=1)) == 0.5


@pytest.mark.skipif(
    not hasattr(getattr(optax, "contrib", None), "hutchinson_estimator_diag_hessian"),
    reason="the estimator came with optax 0.2.5",
)
def test_an_estimator_takes_its_objective_by_position() -> None:
    key = jax.random.PRNGKey(0)
    estimator = optax.contrib.hutchinson_estimator_diag_hessian(key)
    params = {"w": jnp.ones((3, 4))}
    hessian, _ = estimator.update(
        params, estimator.init(params), params, lambda p: 3 * (p["w"] ** 2).sum()
    )
    np.testing.assert_allclose(hessian["w"], 6.0, rtol=1e-6)


def counting() -> Any:
    """A user-defined transformation that keeps a Python number and a NumPy array."""

    def init(params: Any) -> Any:
        del params
        return {"steps": 0, "seen": np.zeros(2)}

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        assert isinstance(state["steps"], int)
        assert isinstance(state["seen"], np.ndarray)
        return grads, {"steps": state["steps"] + 1, "seen": state["seen"] + 0.5}

    return optax.GradientTransformation(init, update)


WRAPPERS = {
    "flatten": lambda: optax.flatten(counting()),
    "inject": lambda: optax.inject_hyperparams(lambda rate: (rate, counting())[1])(rate=0.1),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_state_on_the_host_stays_there(name: str) -> None:
    tx, params = WRAPPERS[name](), {"w": jnp.ones(3)}
    state = tx.init(params)
    for _ in range(2):
        _, state = tx.update(params, state, params)
    inner = getattr(state, "inner_state", state)
    assert inner["steps"] == 2
    assert type(inner["steps"]) is int
    assert inner["seen"].dtype == np.float64


def test_numpy_gradients_keep_their_digits_in_eager_steps() -> None:
    tx, grads = optax.sgd(0.1), {"w": np.full(3, 0.3)}
    updates, _ = tx.update(grads, tx.init(grads), grads)
    assert isinstance(updates["w"], np.ndarray)
    np.testing.assert_allclose(updates["w"], -0.1 * 0.3, rtol=1e-15)


@pytest.mark.skipif(
    Version(optax.__version__) >= Version("0.2.8"),
    reason="stock keeps what is written, and scan refuses that",
)
def test_a_learning_rate_of_another_dtype_may_be_written_inside_a_scan() -> None:
    tx, params = optax.inject_hyperparams(optax.sgd)(0.1), {"w": jnp.ones(3)}

    def step(state: Any, _: None) -> Any:
        hyperparams = {**state.hyperparams, "learning_rate": jnp.asarray(0.05, jnp.bfloat16)}
        updates, new_state = tx.update(params, state._replace(hyperparams=hyperparams), params)
        return new_state, updates["w"]

    _, updates = jax.lax.scan(step, tx.init(params), None, length=2)
    np.testing.assert_allclose(updates, -0.05, rtol=4e-3)


@pytest.mark.skipif(not hasattr(jnp, "float8_e4m3fn"), reason="this jax has no float8")
def test_multi_steps_takes_float8_params() -> None:
    """No dtype promotes implicitly with float8. Stock raises up to optax 0.2.7."""
    params = {"w": jnp.ones(3, jnp.float8_e4m3fn)}
    grads = {"w": jnp.full(3, 0.5, jnp.float32)}
    tx = optax.MultiSteps(optax.sgd(0.1), 2)
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(grads, state, params)
    np.testing.assert_allclose(updates["w"].astype(jnp.float32), -0.05, rtol=1e-6)
