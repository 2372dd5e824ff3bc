from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_dtypefix._contract.x64 import x64
from support.contract import assert_keeps_the_contract, float64_in
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.trees import leaves, tree_map, tree_of

if TYPE_CHECKING:
    from support.fuzzing import Draw


# optax 0.1.2 calls functions of jax by their deprecated names.
pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_:FutureWarning")


def fuzzed(draw: Draw) -> Any:
    return draw.of(
        lambda: optax.sgd(draw.rate(), momentum=draw.of(None, 0.9), nesterov=draw.of(True, False)),
        lambda: optax.adamw(draw.rate(), weight_decay=draw.number()),
        lambda: draw.call(optax, "lion noisy_sgd", draw.rate()),
        lambda: optax.scale(draw.number()),
        lambda: optax.add_decayed_weights(draw.number()),
    )()


FUZZ = FuzzCase(fuzzed)
PROGRAMS = {
    "bfloat16": Program(lambda: optax.sgd(0.1), jnp.bfloat16),
    "array": Program(lambda: optax.sgd(jnp.asarray(0.1, jnp.float32))),
    "schedule": Program(lambda: optax.sgd(optax.linear_schedule(0.01, 0.1, 10))),
}

RATES = {
    "array": lambda: jnp.asarray(0.1, jnp.float32),
    "numpy array": lambda: np.asarray(0.1, np.float32),
    "numpy scalar": lambda: np.float64(0.1),
    "bfloat16": lambda: jnp.asarray(0.1, jnp.bfloat16),
}


@pytest.mark.parametrize("rate", RATES.values(), ids=RATES)
@pytest.mark.parametrize(
    "dtypes", one_of(3, [("bfloat16",), ("float16",), ("bfloat16", "float32")]), ids=str
)
def test_updates_have_the_dtypes_of_the_gradients(rate: Any, dtypes: Any) -> None:
    assert_keeps_the_contract(optax.sgd(rate(), momentum=0.9), tree_of(*dtypes))
    assert_keeps_the_contract(optax.adamw(rate(), weight_decay=rate()), tree_of(*dtypes))


@pytest.mark.parametrize("rate", RATES.values(), ids=RATES)
def test_nothing_is_computed_in_float64(rate: Any) -> None:
    with x64():
        params = tree_of(jnp.float32)
        tx = optax.chain(optax.add_decayed_weights(rate()), optax.sgd(rate()))
        assert not float64_in(tx.update, params, tx.init(params), params)
        assert_keeps_the_contract(tx, params)


@pytest.mark.parametrize("decay", [np.float64(0), np.float64(-0.0)], ids=str)
def test_a_weight_decay_that_is_the_zero_of_numpy_is_as_one_of_python(decay: Any) -> None:
    """optax 0.2.8 adds nothing then, where 0 * inf is nan. Older releases multiply."""
    params, grads = {"w": jnp.asarray([1.0, jnp.inf])}, {"w": jnp.asarray([2.0, 3.0])}
    exact = {"0.2.8": [2.0, 3.0], "0.2.3": [2.0, np.nan]}.get(optax.__version__)
    with x64():
        for rate in (decay, 0.0):
            tx = optax.add_decayed_weights(rate)
            assert not float64_in(tx.update, grads, tx.init(params), params)
            updates, _ = tx.update(grads, tx.init(params), params)
            exact = updates["w"] if exact is None else exact
            assert updates["w"].dtype == jnp.float32
            np.testing.assert_array_equal(updates["w"], exact)


def test_float64_params_keep_a_float64_rate() -> None:
    with x64():
        params = tree_of(jnp.float64)
        rate = np.float64(0.1) + 1e-12
        updates, _ = optax.sgd(rate).update(params, optax.sgd(rate).init(params), params)
        np.testing.assert_array_equal(updates["w"], -rate * np.asarray(params["w"]))


def test_a_float64_decay_of_float64_params_keeps_its_digits_beside_float32_gradients() -> None:
    with x64():
        params, grads = jnp.ones(3), jnp.zeros(3, jnp.float32)
        tx = optax.add_decayed_weights(np.float64(0.1) + 1e-12)
        updates, _ = tx.update(grads, tx.init(params), params)
        np.testing.assert_array_equal(updates, np.float64(0.1) + 1e-12)


def test_the_rate_is_not_rounded_before_it_is_used() -> None:
    """0.1 is 0.10009765625 in bfloat16, which is 0.1 % off."""
    params = {"w": jnp.full(3, 1.0, jnp.float32), "b": jnp.full(3, 3.0, jnp.bfloat16)}
    tx = optax.sgd(jnp.asarray(0.1, jnp.float32))
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"], np.float32(-0.1) * np.float32(1))
    np.testing.assert_array_equal(updates["b"], jnp.asarray(-np.float32(0.1) * 3, jnp.bfloat16))


def halving(count: Any) -> Any:
    return jnp.asarray(0.1, jnp.float32) / (count + 1)


def updates_of(tx: Any, params: Any) -> list[Any]:
    state, found = tx.init(params), []
    for seed in range(4):
        updates, state = jax.jit(tx.update)(tree_of(params["w"].dtype, seed=seed), state, params)
        found.append(tree_map(lambda leaf: np.asarray(leaf, np.float64), updates))
    return found


BY_SCHEDULE = {
    "sm3": lambda rate: optax.sm3(rate, momentum=0.8),
    "optimistic_adam": lambda rate: optax.optimistic_adam(rate, b1=0.8),
}
BY_SCHEDULE = {name: build for name, build in BY_SCHEDULE.items() if hasattr(optax, name)}


@pytest.mark.filterwarnings("ignore:`optimistic_adam`:DeprecationWarning")
@pytest.mark.parametrize("build", BY_SCHEDULE.values(), ids=BY_SCHEDULE)
@pytest.mark.parametrize("dtype", one_of(3, ["float32", "bfloat16", "float16"]))
def test_a_schedule_scales_each_step(build: Any, dtype: str) -> None:
    """Updates are linear in the learning rate, and no moment depends on the rate."""
    tolerance = {"float32": 1e-6, "bfloat16": 2**-7, "float16": 2**-10}[dtype]
    params = tree_of(dtype)
    assert_keeps_the_contract(build(halving), params)
    whole = updates_of(build(1.0), params)
    for count, (got, expected) in enumerate(zip(updates_of(build(halving), params), whole)):
        for name, leaf in got.items():
            rate = 0.1 / (count + 1)
            # In optimistic_adam, two directions of about 1 may cancel.
            atol = tolerance * rate
            np.testing.assert_allclose(leaf, rate * expected[name], rtol=tolerance, atol=atol)


@pytest.mark.skipif("optimistic_adam" not in BY_SCHEDULE, reason="it came with optax 0.2.4")
@pytest.mark.filterwarnings("ignore:`optimistic_adam`:DeprecationWarning")
def test_optimistic_adam_by_a_schedule_keeps_its_state_and_its_optimism() -> None:
    params, grads = tree_of("float32"), tree_of("float32", seed=1)
    tx = optax.optimistic_adam(halving, 0.5)
    state = tx.init(params)
    plain = optax.optimistic_adam(0.1, 0.5)
    expected, plain_state = plain.update(grads, plain.init(params), params)
    updates, state = tx.update(grads, state, params)
    assert jax.tree_util.tree_structure(state) == jax.tree_util.tree_structure(plain_state)
    np.testing.assert_allclose(updates["w"], expected["w"], rtol=1e-6)
    # The second step uses the rate of that step: (alpha + beta) g - beta g'.
    half = optax.optimistic_adam(0.05, 0.5)
    expected, _ = half.update(params, plain_state, params)
    updates, _ = tx.update(params, state, params)
    np.testing.assert_allclose(updates["w"], expected["w"], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:`optimistic_adam`:DeprecationWarning")
@pytest.mark.parametrize("build", BY_SCHEDULE.values(), ids=BY_SCHEDULE)
def test_a_schedule_gives_no_float64(build: Any) -> None:
    with x64():
        tx = build(lambda count: jnp.asarray(0.1, jnp.float64) / (count + 1))
        params = tree_of("float32")
        assert_keeps_the_contract(tx, params)
        assert {*float64_in(tx.update, params, tx.init(params), params)} <= {()}


@pytest.mark.parametrize("grads", one_of(3, ["bfloat16", "float16", "int8"]))
def test_float32_params_with_narrow_gradients_get_float32_updates(grads: str) -> None:
    tx = optax.sgd(jnp.asarray(0.1, jnp.float32))
    params = {"w": jnp.ones(2)}
    updates, _ = tx.update({"w": jnp.asarray([3, -1], grads)}, tx.init(params), params)
    assert updates["w"].dtype == jnp.float32
    np.testing.assert_allclose(updates["w"], [-0.3, 0.1], rtol=1e-6)


def test_a_float32_rate_of_float32_params_keeps_its_bits() -> None:
    params = tree_of(jnp.float32)
    rate = np.float32(0.1)
    tx = optax.sgd(rate)
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"], -rate * np.asarray(params["w"]))


def test_a_float32_weight_decay_beside_float64_keeps_the_bits_of_float32_params() -> None:
    with x64():
        params, grads = (tree_of("float32", "float64", seed=seed) for seed in (0, 1))
        decay = np.float32(0.1)
        tx = optax.add_decayed_weights(jnp.asarray(decay))
        updates, _ = tx.update(grads, tx.init(params), params)
        for got, grad, param in zip(*map(leaves, (updates, grads, params))):
            expected = np.asarray(grad) + decay * np.asarray(param)
            assert got.dtype == expected.dtype == grad.dtype
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("wide", one_of(2, [False, True]))
def test_an_integer_array_as_learning_rate_scales_the_gradients(wide: bool) -> None:
    with x64(wide):
        tx, params = optax.sgd(jnp.asarray(2, jnp.int32)), tree_of(jnp.float32)
        updates, _ = tx.update(params, tx.init(params), params)
        np.testing.assert_array_equal(updates["w"], -2 * np.asarray(params["w"]))


def takes_a_schedule(build: Any) -> bool:
    try:
        tx, params = build(halving), tree_of("float32")
        jax.eval_shape(tx.update, params, tx.init(params), params)
    except TypeError:
        return False
    return True


MADGRAD = getattr(getattr(optax, "contrib", None), "madgrad", None)
SCHEDULED = {"weight decay": optax.add_decayed_weights, "madgrad": MADGRAD}
SCHEDULED = {name: build for name, build in SCHEDULED.items() if build and takes_a_schedule(build)}


@pytest.mark.parametrize("build", SCHEDULED.values(), ids=SCHEDULED)
def test_a_float64_schedule_of_float32_params_is_used_in_float32(build: Any) -> None:
    with x64():
        tx = build(lambda count: jnp.asarray(0.1, jnp.float64) / (count + 1))
        params = tree_of("float32")
        assert {*float64_in(tx.update, params, tx.init(params), params)} <= {()}
        plain = build(halving)
        updates, _ = tx.update(params, tx.init(params), params)
        expected, _ = plain.update(params, plain.init(params), params)
        np.testing.assert_allclose(updates["w"], expected["w"], rtol=1e-6)
