"""The base optimizer of ``mechanize``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_dtypefix._contract.x64 import is_x64, x64
from support.contract import assert_keeps_the_contract
from support.thorough import one_of
from support.transformations import drifting
from support.trees import dtypes_of, tree_map, tree_of

contrib = getattr(optax, "contrib", None)
pytestmark = pytest.mark.skipif(
    not hasattr(contrib, "mechanize"), reason="mechanize came with optax 0.1.7"
)


def test_the_base_optimizer_of_mechanize_gets_the_users_dtypes() -> None:
    seen = []

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        seen.append((updates["w"].dtype, params["w"].dtype, is_x64()))
        return updates, state

    base = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    params = tree_of(jnp.bfloat16)
    with x64():
        tx = contrib.mechanize(base)
        tx.update(params, tx.init(params), params)
    assert seen == [(jnp.bfloat16, jnp.bfloat16, True)]


def averaging(start: Any, seen: list[Any]) -> Any:
    """Return a base optimizer with the mean of the gradients in its state."""

    def init(params: Any) -> Any:
        return {"mean": tree_map(start, params), "count": jnp.zeros((), jnp.int32)}

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        seen.append(dtypes_of((updates, params)))
        mean = tree_map(lambda m, g: 0.5 * m + 0.5 * g, state["mean"], updates)
        return tree_map(lambda m: -0.1 * m, mean), {"mean": mean, "count": state["count"] + 1}

    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize(
    "start",
    [
        lambda _: 0,
        lambda p: jnp.zeros(p.shape, jnp.int32),
        lambda p: jnp.zeros(p.shape, jnp.float32),
    ],
    ids=["0", "int32", "float32"],
)
def test_the_state_of_the_base_optimizer_keeps_fractions(start: Any) -> None:
    seen: list[Any] = []
    tx = contrib.mechanize(averaging(start, seen))
    dtype = jnp.float32
    params = {"w": jnp.asarray([1.5, -0.5], dtype)}
    gradients = [{"w": jnp.asarray([k + 0.25, 1 - k], dtype)} for k in range(3)]
    exact, state, step = np.zeros(2), tx.init(params), jax.jit(tx.update)
    for grads in gradients:
        updates, state = step(grads, state, params)
        params = optax.apply_updates(params, updates)
        exact = 0.5 * exact + 0.5 * np.asarray(grads["w"])
        mean = state.base_optimizer_state["mean"]["w"]
        assert mean.dtype == dtype
        np.testing.assert_allclose(mean, exact, rtol=1e-6)
        assert state.base_optimizer_state["count"].dtype == jnp.int32
    assert seen
    assert all(dtypes == [dtype, dtype] for dtypes in seen)
    assert tx.init(params).base_optimizer_state["mean"]["w"].dtype == dtype


def test_mechanize_gives_updates_of_the_dtype_that_the_base_optimizer_is_asked_for() -> None:
    params = tree_of(jnp.bfloat16)
    for dtype in (jnp.float32, jnp.bfloat16):
        tx = contrib.mechanize(optax.adam(0.1, mu_dtype=dtype))
        updates, _ = tx.update(params, tx.init(params), params)
        assert {*dtypes_of(updates)} == {jnp.dtype(dtype)}


def test_a_base_optimizer_that_changes_dtypes_keeps_those_of_the_params() -> None:
    params = tree_of(jnp.bfloat16)
    assert_keeps_the_contract(contrib.mechanize(drifting()), params)


def test_float32_updates_of_a_base_optimizer_without_a_state_are_narrowed() -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        return tree_map(lambda u: -0.1 * u.astype(jnp.float32), updates), state

    base = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    assert_keeps_the_contract(contrib.mechanize(base), tree_of(jnp.bfloat16))


def test_updates_of_a_base_optimizer_under_other_keys_raise() -> None:
    base = optax.identity()._replace(update=lambda grads, state, _=None: ({"v": grads["w"]}, state))
    tx, params = contrib.mechanize(base), {"w": jnp.ones(3)}
    with pytest.raises((TypeError, ValueError)):
        tx.update(params, tx.init(params), params)


@pytest.mark.parametrize("dtype", one_of(2, [jnp.float32, jnp.bfloat16], 1))
def test_complex_updates_of_real_params_keep_their_imaginary_part(dtype: Any) -> None:
    def base(factor: complex) -> Any:
        def update(grads: Any, state: Any, params: Any = None) -> Any:
            del params
            return tree_map(lambda g: factor * g, grads), state

        return optax.identity()._replace(update=update)

    txs = [contrib.mechanize(base(factor), s_init=0.1) for factor in (-0.1, -0.1 - 0.2j)]
    params = {"w": jnp.asarray([1.5, -0.5], dtype)}
    real_state, state = (tx.init(params) for tx in txs)
    for k in range(3):
        grads = tree_map(lambda p, k=k: p * (k + 0.5), params)
        real, real_state = txs[0].update(grads, real_state, params)
        updates, state = txs[1].update(grads, state, params)
        assert updates["w"].dtype == jnp.complex64
        np.testing.assert_allclose(updates["w"].real, real["w"].astype(float), rtol=1e-2)
        # The scale of the base updates is the sum of s, and the param itself is real.
        exact = -0.2 * np.sum(np.asarray(state.s, np.float64)) * np.asarray(grads["w"], np.float64)
        np.testing.assert_allclose(updates["w"].imag, exact, rtol=1e-5)
        assert [p.dtype for p in jax.tree_util.tree_leaves(state.x0)] == [dtype]
        params = optax.apply_updates(params, real)


def test_eager_steps_leave_no_float32_copies() -> None:
    """jax 0.4.25 keeps what the branches of ``cond`` close over: params and ``x0``."""
    tx, params = contrib.mechanize(optax.adam(0.1)), {"w": jnp.ones(1234, jnp.bfloat16)}
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(params, state, params)
    assert updates["w"].dtype == state.x0["w"].dtype == jnp.bfloat16
    copies = [a for a in jax.live_arrays() if a.shape == (1234,) and a.dtype == jnp.float32]
    assert copies == []


@pytest.mark.thorough
def test_eager_steps_have_derivatives() -> None:
    """The copies are deleted in steps without one."""
    params = tree_of(jnp.bfloat16)

    def loss(rate: Any, grads: Any) -> Any:
        tx = contrib.mechanize(optax.sgd(rate), weight_decay=0.1)
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(grads, state, params)
        return sum(jnp.sum(update.astype(jnp.float32)) for update in updates.values())

    found = jax.grad(loss, argnums=(0, 1))(0.1, params)
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1)))(0.1, params)
    assert float(found[0]) != 0
    np.testing.assert_allclose(*(float(of[0]) for of in (found, compiled)), rtol=0.02)
