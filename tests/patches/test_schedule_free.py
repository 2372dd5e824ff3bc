from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_dtypefix._contract.x64 import x64
from support.contract import assert_keeps_the_contract
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.training import train
from support.trees import dtypes_of, in_float64, leaves, tree_map, tree_of

if TYPE_CHECKING:
    from support.fuzzing import Draw


contrib = getattr(optax, "contrib", None)
pytestmark = pytest.mark.skipif(
    not hasattr(contrib, "schedule_free"), reason="schedule_free came with optax 0.2.3"
)


def fuzzed(draw: Draw) -> Any:
    tx = draw.call(
        contrib,
        "schedule_free_sgd schedule_free_adamw",
        draw.number(),
        warmup_steps=draw.of(1, 3),
        weight_lr_power=draw.of(2.0, 0.0),
    )
    return tx if draw.of(True, False) else optax.MultiSteps(tx, 2)


def scheduled() -> Any:
    warm_up = optax.linear_schedule(0.01, 0.1, 10)
    return contrib.schedule_free(optax.sgd(warm_up), warm_up)


FUZZ = FuzzCase(fuzzed, "contrib.schedule_free")
SINCE = ">=0.2.3"
PROGRAMS = {
    "sgd": Program(lambda: contrib.schedule_free_sgd(0.1), releases=SINCE),
    "adamw": Program(lambda: contrib.schedule_free_adamw(1e-2, weight_decay=0.1), releases=SINCE),
    "warm-up": Program(lambda: contrib.schedule_free_sgd(0.1, warmup_steps=3), releases=SINCE),
    "schedule": Program(scheduled, releases=SINCE),
    "narrow z": Program(
        lambda: contrib.schedule_free_sgd(0.1, state_dtype=jnp.bfloat16), releases=SINCE
    ),
    "adamw bfloat16": Program(
        lambda: contrib.schedule_free_adamw(1e-3), jnp.bfloat16, SINCE, same="state"
    ),
}

STEPS, RATE, B1 = 600, 0.1, 0.9


def reference(start: Any, target: Any, rate: Any) -> Any:
    """Run schedule-free SGD on |x - target|^2 / 2 in float64, as in the paper."""
    y = z = x = in_float64(start)
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
def test_averages_follow_the_paper(rate: Any) -> None:
    params, target = tree_of(jnp.float32), tree_of(jnp.float32, seed=1)
    got, state = trained(contrib.schedule_free(optax.sgd(rate), rate), params, target)
    evaluated = contrib.schedule_free_eval_params(state, got)
    for name in params:
        goal = in_float64(target[name])
        expected, _ = reference(params[name], goal, in_numpy(rate))
        np.testing.assert_allclose(evaluated[name], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", RATES.values(), ids=RATES.keys())
@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
def test_half_precision_steps_are_right_to_the_last_place(dtype: Any, rate: Any) -> None:
    """Compare step 601 with float64, from the same params and state."""
    precision = float(jnp.finfo(dtype).eps) / 2
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
            in_float64(tree[name]) for tree in (params, state.z, grads, updates, evaluated)
        )
        x_before = (y - (1 - B1) * z) / B1
        np.testing.assert_allclose(x, x_before, rtol=2 * precision, atol=1e-6)
        z_after = z - RATE * g
        x_after = x_before + RATE**2 / (total + RATE**2) * (z_after - x_before)
        expected = B1 * x_after + (1 - B1) * z_after - y
        # The user's SGD runs in half precision, which adds two roundings.
        np.testing.assert_allclose(u, expected, rtol=4 * precision, atol=1e-5)


BUILDS: dict[str, Any] = {
    "sgd": lambda: contrib.schedule_free_sgd(0.1),
    "adamw": lambda: contrib.schedule_free_adamw(1e-2, weight_decay=0.1),
    "warm-up": lambda: contrib.schedule_free_adamw(1e-2, warmup_steps=5),
    "state_dtype": lambda: contrib.schedule_free_sgd(0.1, state_dtype=jnp.bfloat16),
    "momentum": lambda: contrib.schedule_free(optax.sgd(0.1, momentum=0.9), 0.1),
    "array": lambda: contrib.schedule_free_sgd(jnp.asarray(0.1, jnp.float32)),
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS.keys())
def test_keeps_the_contract(build: Any) -> None:
    assert_keeps_the_contract(build(), tree_of(jnp.bfloat16))
    assert_keeps_the_contract(build(), tree_of(jnp.bfloat16, jnp.float32))


def test_state_dtype_is_kept() -> None:
    params = tree_of(jnp.bfloat16)
    wide = contrib.schedule_free_sgd(0.1, state_dtype=jnp.float32).init(params)
    assert {*dtypes_of(wide.z)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("build", ["schedule_free", "schedule_free_sgd"])
@pytest.mark.parametrize("asked", one_of(2, [False, True]))
def test_updates_are_as_wide_as_a_state_dtype_that_was_asked_for(build: str, asked: bool) -> None:
    options = {"state_dtype": jnp.float32} if asked else {}
    if build == "schedule_free":
        options["base_optimizer"] = optax.sgd(1e-4)
    tx = getattr(contrib, build)(learning_rate=1e-4, **options)
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    updates, state = tx.update(params, tx.init(params), params)
    assert updates["w"].dtype == (jnp.float32 if asked else jnp.bfloat16)
    np.testing.assert_allclose(np.asarray(updates["w"]).astype(float), -1e-4, rtol=4e-3)
    if optax.__version__ != "0.2.3":  # In 0.2.3, z is always float32.
        evaluated = contrib.schedule_free_eval_params(state, params)
        assert evaluated["w"].dtype == updates["w"].dtype


@pytest.mark.parametrize(
    ("param", "grad", "rate", "expected"),
    [
        (jnp.float16, jnp.bfloat16, 0.1, jnp.float16),
        (jnp.bfloat16, jnp.float32, 0.1, jnp.bfloat16),
        (jnp.bfloat16, jnp.float32, np.asarray(0.1, np.float32), jnp.float32),
        (jnp.bfloat16, jnp.bfloat16, np.asarray(0.1, np.float32), jnp.bfloat16),
        (jnp.bfloat16, jnp.float32, lambda _: jnp.asarray(0.1, jnp.float32), jnp.bfloat16),
    ],
)
def test_updates_are_no_wider_than_those_of_stock(
    param: Any, grad: Any, rate: Any, expected: Any
) -> None:
    """Stock's are as wide as ``z``, the params and its scalars, which are float32 in 0.2.3."""
    tx = contrib.schedule_free(optax.sgd(0.1), rate)
    params, grads = {"w": jnp.ones(3, param)}, {"w": jnp.ones(3, grad)}
    updates, _ = tx.update(grads, tx.init(params), params)
    if optax.__version__ == "0.2.3" and param != grad:
        expected = jnp.float32
    assert updates["w"].dtype == expected
    np.testing.assert_allclose(np.asarray(updates["w"]).astype(float), -0.1, rtol=4e-3)


@pytest.mark.parametrize("as_schedule", [False, True])
def test_a_float64_rate_makes_updates_of_float64_gradients_float64(as_schedule: bool) -> None:
    """In 0.2.3 the value of a schedule does so too; later stock casts that value."""
    with x64():
        rate = np.float64(0.1)
        tx = contrib.schedule_free(optax.sgd(0.1), (lambda _: rate) if as_schedule else rate)
        params, grads = {"w": jnp.ones(3, jnp.float32)}, {"w": jnp.ones(3, jnp.float64)}
        updates, _ = tx.update(grads, tx.init(params), params)
    narrow = as_schedule and optax.__version__ != "0.2.3"
    assert updates["w"].dtype == (jnp.float32 if narrow else jnp.float64)


@pytest.mark.parametrize("grads_dtype", one_of(3, [jnp.bfloat16, jnp.float16, jnp.int8]))
def test_float32_params_get_float32_updates(grads_dtype: Any) -> None:
    """Compare two steps with the paper. The rate is exact in half precision."""
    rate = 2**-13
    tx = contrib.schedule_free_sgd(rate)
    params, grads = {"w": jnp.zeros(3, jnp.float32)}, {"w": jnp.ones(3, grads_dtype)}
    state = tx.init(params)
    # First x = y = z = -rate. Then z = -2 rate, x = -1.5 rate and y = 0.9 x + 0.1 z.
    for expected in (-1.0, -0.55):
        updates, state = jax.jit(tx.update)(grads, state, params)
        assert updates["w"].dtype == jnp.float32
        np.testing.assert_allclose(updates["w"], expected * rate, rtol=1e-5)
        params = optax.apply_updates(params, updates)


def test_integer_params_have_float_averages() -> None:
    tx = contrib.schedule_free_sgd(0.25)
    params, goal = {"n": jnp.asarray([4, 8], jnp.int32)}, np.asarray([0.0, 1.0])
    state = tx.init(params)
    z = x = y = np.asarray([4.0, 8.0])
    for count in range(1, 4):
        grads = {"n": jnp.asarray(y - goal, jnp.float32)}
        updates, state = jax.jit(tx.update)(grads, state, params)
        z = z - 0.25 * (y - goal)
        x = (y - 0.1 * (z + 0.25 * (y - goal))) / 0.9
        x = x + (z - x) / count
        expected = 0.9 * x + 0.1 * z - y
        assert state.z["n"].dtype == updates["n"].dtype == jnp.float32
        np.testing.assert_allclose(updates["n"], expected, rtol=1e-4)
        evaluated = contrib.schedule_free_eval_params(state, params)["n"]
        np.testing.assert_allclose(evaluated, (y - 0.1 * z) / 0.9, rtol=1e-4)
        params = optax.apply_updates(params, updates)
        y = in_float64(params["n"])


def test_a_narrow_state_dtype_does_not_round_the_averages_of_integer_params() -> None:
    tx = contrib.schedule_free_sgd(0.25, state_dtype=jnp.bfloat16)
    params = {"n": jnp.asarray([257, -1001], jnp.int32)}
    state = tx.init(params)
    evaluated = contrib.schedule_free_eval_params(state, params)["n"]
    y, z = (in_float64(tree["n"]) for tree in (params, state.z))
    assert evaluated.dtype == jnp.float32
    np.testing.assert_allclose(evaluated, (y - 0.1 * z) / 0.9, rtol=1e-6)


def test_the_state_of_another_optimizer_raises_as_on_stock() -> None:
    with pytest.raises(AttributeError, match=r"'(b1|z)'"):
        contrib.schedule_free_eval_params((), {"w": jnp.ones(3)})


@pytest.mark.filterwarnings("ignore:In a future release of JAX, flatten-up-to")
@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
def test_without_params_half_precision_fails_as_float32_does(dtype: Any) -> None:
    """Stock returns no updates, or raises in newer releases."""

    def outcome(dtype: Any) -> Any:
        tx, params = contrib.schedule_free(optax.adam(0.1), 0.1), {"w": jnp.ones(2, dtype)}
        state = tx.init(params)
        try:
            return tx.update(params, state)[0]
        except ValueError as error:
            return str(error).partition(" got ")[0]  # Then some releases print the array.

    assert outcome(dtype) == outcome(jnp.float32)


def test_a_base_state_that_meets_complex_gradients_keeps_the_imaginary_part() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return tree_map(jnp.real, grads), 0.5 * state + 0.5 * grads["w"].mean()

    base = optax.GradientTransformation(lambda _: jnp.float32(0), update)
    tx = contrib.schedule_free(base, 0.1)
    params = {"w": jnp.ones(3)}
    _, state = tx.update({"w": jnp.full(3, 1 + 2j)}, tx.init(params), params)
    np.testing.assert_allclose(state.base_optimizer_state, 0.5 + 1j)


def test_the_base_optimizer_gets_the_users_dtypes() -> None:
    seen = []

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        seen.append([leaf.dtype for leaf in (*leaves(grads), *leaves(params))])
        return grads, state

    base = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    tx = contrib.schedule_free(base, 0.1)
    params = tree_of(jnp.bfloat16)
    tx.update(params, tx.init(params), params)
    assert {str(dtype) for dtypes in seen for dtype in dtypes} == {"bfloat16"}


def test_averages_of_a_state_restored_from_stock_are_right_to_the_last_place() -> None:
    params = tree_of(jnp.bfloat16)
    state = contrib.schedule_free_sgd(0.1).init(params)
    b1 = jnp.asarray(0.9, jnp.bfloat16)
    state = state._replace(b1=b1, z=tree_of(jnp.bfloat16, seed=1))
    found = contrib.schedule_free_eval_params(state, params)
    beta, exact = float(b1), in_float64(state.z)
    for name, param in in_float64(params).items():
        average = (param - (1 - beta) * exact[name]) / beta
        np.testing.assert_array_equal(found[name], jnp.asarray(average, jnp.bfloat16))


@pytest.mark.parametrize("empty", [None, {}, ((), None)])
def test_an_empty_tree_works_in_64_bit_mode(empty: Any) -> None:
    with x64():
        tx = contrib.schedule_free_sgd(0.1)
        state = tx.init(empty)
        _, new_state = tx.update(empty, state, empty)
        assert new_state.weight_sum.dtype == state.weight_sum.dtype == jnp.float32
