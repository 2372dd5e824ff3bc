from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import assert_keeps_the_contract, float64_in, leaves, train, tree_of

from optax_dtypefix._dtypes import x64

contrib = getattr(optax, "contrib", None)
pytestmark = pytest.mark.skipif(
    not hasattr(contrib, "schedule_free"), reason="schedule_free came with optax 0.2.3"
)

STEPS, RATE, B1 = 600, 0.1, 0.9


def reference(start: Any, target: Any, rate: Any) -> Any:
    """Schedule-free SGD on |x - target|^2 / 2 in float64 numpy, from the paper."""
    y = z = x = np.asarray(start).astype(np.float64)
    largest = total = 0.0
    for count in range(1, STEPS + 1):
        largest = max(largest, rate(count))
        total += largest**2
        z = z - rate(count) * (y - target)
        x = x + largest**2 / total * (z - x)
        y = B1 * x + (1 - B1) * z
    return x, total


def trained(tx: Any, params: Any, target: Any) -> Any:
    return train(tx, params, target, STEPS, lambda _: None)[0]


RATES: dict[str, Any] = {
    "number": RATE,
    "array": np.asarray(RATE, np.float32),
    "schedule": lambda count: jnp.asarray(RATE, jnp.float32) * jnp.minimum(1.0, count / 50.0),
}


def in_numpy(rate: Any) -> Any:
    return (lambda count: RATE * min(1.0, count / 50.0)) if callable(rate) else lambda _: RATE


@pytest.mark.parametrize("rate", RATES.values(), ids=RATES.keys())
def test_averages_as_the_paper_says(rate: Any) -> None:
    params, target = tree_of(jnp.float32), tree_of(jnp.float32, seed=1)
    got, state = trained(contrib.schedule_free(optax.sgd(rate), rate), params, target)
    evaluated = contrib.schedule_free_eval_params(state, got)
    for name in params:
        goal = np.asarray(target[name]).astype(np.float64)
        expected, _ = reference(params[name], goal, in_numpy(rate))
        np.testing.assert_allclose(evaluated[name], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", RATES.values(), ids=RATES.keys())
@pytest.mark.parametrize(("dtype", "precision"), [(jnp.bfloat16, 2**-8), (jnp.float16, 2**-11)])
def test_half_precision_steps_are_right_to_the_last_place(
    dtype: Any, precision: float, rate: Any
) -> None:
    """After 600 steps, one more, against float64 from the same params and state."""
    tx = contrib.schedule_free(optax.sgd(rate), rate)
    params, state = trained(tx, tree_of(dtype), tree_of(dtype, seed=1))
    total = reference(0.0, 0.0, in_numpy(rate))[1]
    np.testing.assert_allclose(float(state.weight_sum), total, rtol=1e-4)
    np.testing.assert_allclose(np.ravel(state.b1)[0], np.float32(B1))

    grads = tree_of(dtype, seed=2)
    updates, _ = jax.jit(tx.update)(grads, state, params)
    evaluated = contrib.schedule_free_eval_params(state, params)
    for name in params:
        y, z, g, u, x = (
            np.asarray(tree[name]).astype(np.float64)
            for tree in (params, state.z, grads, updates, evaluated)
        )
        x_before = (y - (1 - B1) * z) / B1
        np.testing.assert_allclose(x, x_before, rtol=2 * precision, atol=1e-6)
        z_after = z - RATE * g
        x_after = x_before + RATE**2 / (total + RATE**2) * (z_after - x_before)
        expected = B1 * x_after + (1 - B1) * z_after - y
        # The gradient goes through the user's SGD in half precision: two roundings more.
        np.testing.assert_allclose(u, expected, rtol=4 * precision, atol=1e-5)


BUILDS: dict[str, Any] = {
    "sgd": lambda: contrib.schedule_free_sgd(0.1),
    "adamw": lambda: contrib.schedule_free_adamw(1e-2, weight_decay=0.1),
    "warm-up": lambda: contrib.schedule_free_adamw(1e-2, warmup_steps=5),
    "state_dtype": lambda: contrib.schedule_free_sgd(0.1, state_dtype=jnp.float32),
    "momentum": lambda: contrib.schedule_free(optax.sgd(0.1, momentum=0.9), 0.1),
    "array": lambda: contrib.schedule_free_sgd(jnp.asarray(0.1, jnp.float32)),
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS.keys())
def test_keeps_the_contract(build: Any) -> None:
    assert_keeps_the_contract(build(), tree_of(jnp.bfloat16))
    assert_keeps_the_contract(build(), tree_of(jnp.bfloat16, jnp.float32))


def test_wider_gradients_keep_the_contract() -> None:
    tx = contrib.schedule_free_sgd(0.1)
    assert_keeps_the_contract(tx, tree_of(jnp.bfloat16), tree_of(jnp.float32))


def test_inside_multi_steps() -> None:
    """Upstream issue 1038."""
    tx = optax.MultiSteps(contrib.schedule_free_adamw(1e-2), 2)
    assert_keeps_the_contract(tx, tree_of(jnp.bfloat16))


def test_state_dtype_is_the_users() -> None:
    params = tree_of(jnp.bfloat16)
    wide = contrib.schedule_free_sgd(0.1, state_dtype=jnp.float32).init(params)
    assert {leaf.dtype for leaf in leaves(wide.z)} == {np.dtype(np.float32)}


def test_the_base_optimizer_sees_the_dtypes_of_the_user() -> None:
    seen = []

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        seen.append([leaf.dtype for leaf in (*leaves(grads), *leaves(params))])
        return grads, state

    base = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    tx = contrib.schedule_free(base, 0.1)
    params = tree_of(jnp.bfloat16)
    tx.update(params, tx.init(params), params)
    assert {str(dtype) for dtypes in seen for dtype in dtypes} == {"bfloat16"}


def test_float64_stays_float64_and_float32_does_not_become_it() -> None:
    with x64():
        tx = contrib.schedule_free_sgd(0.1)
        assert_keeps_the_contract(tx, tree_of(jnp.float64))
        params = tree_of(jnp.float32)
        assert_keeps_the_contract(tx, params)
        assert not float64_in(lambda p: tx.update(p, tx.init(p), p), params)


def test_a_state_restored_from_stock_keeps_its_dtypes() -> None:
    tx = contrib.schedule_free_sgd(0.1)
    params = tree_of(jnp.bfloat16)
    state = tx.init(params)
    narrow = state._replace(
        weight_sum=state.weight_sum.astype(jnp.bfloat16), max_lr=state.max_lr.astype(jnp.bfloat16)
    )
    _, new_state = jax.jit(tx.update)(params, narrow, params)
    assert new_state.weight_sum.dtype == new_state.max_lr.dtype == jnp.bfloat16


def test_an_integer_leaf_does_not_make_integers_of_the_statistics() -> None:
    tx = contrib.schedule_free_sgd(0.1)
    state = tx.init(tree_of(jnp.float32, jnp.int32))
    assert state.weight_sum.dtype == state.b1.dtype == jnp.float32
    assert state.z["b"].dtype == (jnp.int32 if optax.__version__ != "0.2.3" else jnp.float32)


@pytest.mark.parametrize("empty", [None, {}, ((), None)])
def test_a_tree_without_leaves_in_64_bit_mode(empty: Any) -> None:
    with x64():
        tx = contrib.schedule_free_sgd(0.1)
        state = tx.init(empty)
        _, new_state = tx.update(empty, state, empty)
        assert new_state.weight_sum.dtype == state.weight_sum.dtype == jnp.float32
