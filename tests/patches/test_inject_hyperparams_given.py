"""The state of ``inject_hyperparams`` holds stock's rounding; the step uses what was given."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

from support.thorough import one_of
from support.trees import dtypes_of, tree_map, tree_of

# optax 0.1.2 calls jax.tree_leaves in inject_hyperparams.
pytestmark = [
    pytest.mark.rule("C4"),
    pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated:FutureWarning"),
]

inject = optax.inject_hyperparams


def passed_on(value: Any, params: Any, *states: Any) -> float:
    """Return the hyperparameter that a step uses, after changes of the state."""
    tx = inject(lambda number: optax.stateless(lambda grads, _: grads * number))(value)
    state = tx.init(params)
    for number in states:
        state.hyperparams["number"] = number
    grads = jnp.ones(1, jnp.float32)  # So that nothing is rounded on the way out.
    found = [float(step(grads, state, params)[0][0]) for step in (tx.update, jax.jit(tx.update))]
    np.testing.assert_array_equal(*found)
    return found[0]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")  # Of stock.
@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
@pytest.mark.parametrize("value", [0.999, 1e-8, 1e5, 1 / 3, -0.3, 0.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", one_of(3, [float, np.asarray, jnp.float32]))
def test_a_constant_is_used_as_it_was_given(kind: Any, value: float, dtype: Any) -> None:
    used = passed_on(kind(value), jnp.ones(1, dtype))
    np.testing.assert_array_equal(used, np.float32(value))


@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
def test_another_value_in_the_state_is_the_users(dtype: Any) -> None:
    params = jnp.ones(1, dtype)
    for mine in (0.5, 0.0, 2.0, np.inf, np.nan):
        leaf = jnp.asarray(mine, dtype)
        np.testing.assert_array_equal(passed_on(0.999, params, leaf), mine)
        np.testing.assert_array_equal(passed_on(0.999, params, np.asarray(leaf)), mine)
    for exact in (0.9995, np.float64(0.9995), jnp.float32(0.9995)):
        assert passed_on(0.999, params, exact) == np.float32(0.9995)
    # The price: 0.9995 in bfloat16 is 1, and so is 0.999.
    rounded = jnp.asarray(0.9995, dtype)
    expected = np.float32(0.999) if dtype == jnp.bfloat16 else float(rounded)
    assert passed_on(0.999, params, rounded) == expected


def test_an_array_of_hyperparameters_is_compared_one_by_one() -> None:
    given = jnp.asarray([0.999, 0.25, 0.998])
    tx, params = inject(optax.scale)(given), jnp.ones(3, jnp.bfloat16)
    state = tx.init(params)
    state.hyperparams["step_size"] = jnp.asarray([0.999, 0.5, 0.998], jnp.bfloat16)
    updates, _ = tx.update(jnp.ones(3, jnp.float32), state, params)
    np.testing.assert_array_equal(updates, np.float32([0.999, 0.5, 0.998]))
    state.hyperparams["step_size"] = jnp.asarray(0.5, jnp.bfloat16)  # Of another shape.
    updates, _ = tx.update(jnp.ones(3, jnp.float32), state, params)
    np.testing.assert_array_equal(updates, 0.5)


@pytest.mark.parametrize("convert", [jnp.asarray, np.asarray], ids=["JAX", "NumPy"])
def test_a_bfloat16_state_goes_on_in_float32_with_what_was_given(convert: Any) -> None:
    tx = inject(optax.adam)(1e-2, b2=0.999)
    state = tree_map(convert, tx.init(tree_of(jnp.bfloat16)))
    params = tree_of(jnp.float32)
    narrow = convert is jnp.asarray and Version(optax.__version__) >= Version(
        "0.2.8"
    )  # Stock, too.
    for _ in range(2):
        updates, state = tx.update(params, state, params)
        expected = jnp.dtype(jnp.bfloat16 if narrow else jnp.float32)
        assert {*dtypes_of(state.hyperparams)} == {expected}
        for name, update in updates.items():  # In bfloat16, b2 is 1, and 1 - b2 is 0.
            np.testing.assert_allclose(update, -1e-2 * np.sign(params[name]), rtol=5e-3)


def test_gradients_alone_do_not_widen_the_state() -> None:
    """Without params, float32 gradients do not say that the params are float32."""
    tx, grads = inject(optax.sgd)(0.01), jnp.ones(1, jnp.float32)
    state = tx.init(jnp.ones(1, jnp.bfloat16))
    keeps = Version(optax.__version__) >= Version("0.2.8")  # Stock, too.
    for _ in range(2):
        updates, state = tx.update(grads, state)
        np.testing.assert_array_equal(updates, np.float32(-0.01))
        expected = jnp.bfloat16 if keeps else jnp.float32
        assert state.hyperparams["learning_rate"].dtype == expected


def test_a_given_array_may_be_donated() -> None:
    given = jnp.asarray(0.999, jnp.float32)
    tx, params = inject(optax.scale)(given), jnp.ones(1, jnp.bfloat16)
    state = tx.init(params)
    given.delete()
    if not state.hyperparams["step_size"].is_deleted():  # From 0.2.8 on, the state has that array.
        updates, _ = tx.update(jnp.ones(1, jnp.float32), state, params)
        assert float(updates[0]) == np.float32(0.999)


@pytest.mark.parametrize("start", [0.25, 0.1], ids=["as given", "rounded"])
def test_the_derivative_by_the_state_is_that_on_stock(start: float) -> None:
    """Also where the state stands for what was given: -rate has the derivative -1."""
    tx, params = inject(optax.sgd)(start), jnp.ones(1, jnp.bfloat16)
    state = tx.init(params)

    def update(rate: Any) -> Any:
        changed = state._replace(hyperparams={"learning_rate": rate})
        return tx.update(params, changed, params)[0][0].astype(jnp.float32)

    for value in (state.hyperparams["learning_rate"], jnp.bfloat16(0.5)):
        assert jax.grad(update)(value) == -1
        assert jax.jit(jax.grad(update))(value) == -1


def test_the_derivative_by_what_was_given_is_not_rounded() -> None:
    """1,000 times: in bfloat16 a sum of ones ends at 256."""

    def total(rate: Any) -> Any:
        tx, params = inject(optax.sgd)(rate), jnp.ones(1, jnp.bfloat16)

        def step(state: Any, _: Any) -> Any:
            updates, state = tx.update(params, state, params)
            return state, updates[0].astype(jnp.float32)

        return jax.lax.scan(step, tx.init(params), None, length=1000)[1].sum()

    assert jax.grad(total)(0.1) == -1000
