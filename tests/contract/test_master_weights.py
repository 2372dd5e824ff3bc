from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_dtypefix
from optax_dtypefix import MasterWeightsState, master_weights
from optax_dtypefix._contract.x64 import x64
from support.moments import adam_step
from support.nodes import Converting
from support.processes import CACHE, QUICKLY, run, stdout_of
from support.thorough import one_of
from support.trees import dtypes_of, in_float64, leaves, tree_map, tree_of, types

# optax 0.1.2 calls jax.tree_leaves.
pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated:FutureWarning")

HALVES = pytest.mark.parametrize(
    "dtype", one_of(2, [jnp.bfloat16, jnp.float16]), ids=["bf16", "f16"]
)


def train(tx: Any, params: Any, steps: int, grads_of: Any = lambda p: tree_map(jnp.ones_like, p)):
    """Run steps in a scan."""

    def step(carry: Any, _: Any) -> Any:
        params, state = carry
        updates, state = tx.update(grads_of(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    run = jax.jit(lambda p, s: jax.lax.scan(step, (p, s), None, steps)[0])
    return run(params, tx.init(params))


WRAPPED: dict[str, Any] = {
    "alone": master_weights,
    "inside MultiSteps": lambda tx: optax.MultiSteps(master_weights(tx), 1),
    "around MultiSteps": lambda tx: master_weights(optax.MultiSteps(tx, 1)),
    "inside masked": lambda tx: optax.masked(master_weights(tx), True),
    "around masked": lambda tx: master_weights(optax.masked(tx, True)),
    "inside apply_if_finite": lambda tx: optax.apply_if_finite(master_weights(tx), 3),
    "after a clip": lambda tx: optax.chain(optax.clip(1e3), master_weights(tx)),
}


@HALVES
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_small_steps_add_up(wrap: Any, dtype: Any) -> None:
    params = {"w": jnp.ones((3,), dtype)}
    end, _ = train(wrap(optax.sgd(1e-3)), params, 1000)
    assert end["w"].dtype == dtype
    np.testing.assert_allclose(np.asarray(end["w"], float), 0, atol=1e-4)


def test_without_a_copy_they_are_rounded_away() -> None:
    with optax_dtypefix.disabled("stochastic_rounding"):
        end, _ = train(optax.sgd(1e-3), jnp.ones((3,), jnp.bfloat16), 1000)
    np.testing.assert_array_equal(end, 1)


def test_an_injected_learning_rate_reaches_the_copy() -> None:
    tx = optax.inject_hyperparams(lambda rate: master_weights(optax.sgd(rate)))(1e-3)
    end, _ = train(tx, jnp.ones((3,), jnp.bfloat16), 1000)
    np.testing.assert_allclose(np.asarray(end, float), 0, atol=1e-4)


def wrappers() -> dict[str, Any]:
    """Return wrappers that leave updates alone, where the installed optax has them."""

    def always(_: Any) -> bool:
        return True

    def inject(tx: Any) -> Any:
        return optax.inject_hyperparams(lambda scale: optax.chain(tx, optax.scale(scale)))(1.0)

    found: dict[str, Any] = {
        "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
        "chain": lambda tx: optax.chain(optax.zero_nans(), tx, optax.identity()),
        "flatten": optax.flatten,
        "inject_hyperparams": inject,
        "masked": lambda tx: optax.masked(tx, {"w": True, "b": True}),
        "multi_transform": lambda tx: optax.multi_transform({0: tx}, {"w": 0, "b": 0}),
        "MultiSteps": lambda tx: optax.MultiSteps(tx, 1),
        "nested": lambda tx: optax.apply_if_finite(optax.MultiSteps(optax.flatten(tx), 1), 3),
        "preserve_dtypes": optax_dtypefix.preserve_dtypes,
    }
    if hasattr(getattr(optax, "contrib", None), "split_real_and_imaginary"):
        found["split_real_and_imaginary"] = optax.contrib.split_real_and_imaginary
    for name in ("maybe_update", "conditionally_transform", "conditionally_mask"):
        if hasattr(optax, name):
            found[name] = functools.partial(getattr(optax, name), should_transform_fn=always)
    if hasattr(optax, "maybe_update"):
        found["maybe_update"] = lambda tx: optax.maybe_update(tx, always)
    return found


def two_steps(tx: Any, params: Any) -> tuple[Any, Any]:
    """Run two steps that move params far. All products are exact, so that fusion changes no bit."""
    state, update = tx.init(params), jax.jit(tx.update)
    for _ in range(2):
        grads = tree_map(lambda p: (0.3 * p).astype(p.dtype), params)
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return updates, params


def assert_wrappers_change_nothing(dtype: Any) -> None:
    values = np.random.default_rng(0).normal(size=(2, 2000))
    params = {"w": jnp.asarray(values[0], dtype), "b": jnp.asarray(values[1], dtype)}
    tx = master_weights(optax.sgd(2.0))
    _, alone = two_steps(tx, params)
    for name, wrap in wrappers().items():
        updates, inside = two_steps(wrap(tx), params)
        assert {*dtypes_of(updates)} == {jnp.dtype(jnp.float32)}, name
        for leaf, other in zip(leaves(inside), leaves(alone)):
            np.testing.assert_array_equal(leaf, other, err_msg=name)


@pytest.mark.filterwarnings("ignore:The function maybe_update is deprecated:DeprecationWarning")
def test_a_wrapper_changes_no_bit() -> None:
    assert_wrappers_change_nothing(jnp.bfloat16)


@pytest.mark.thorough
def test_a_wrapper_changes_no_bit_with_the_opt_in_patch() -> None:
    module = "contract.test_master_weights"
    code = f"import {module} as own; own.assert_wrappers_change_nothing('float16')"
    enabled = {"OPTAX_DTYPEFIX_ENABLE": "float32_moments"}
    stdout_of(run("-W", "ignore", "-c", code, **CACHE, **QUICKLY, **enabled))


def test_a_lookahead_changes_no_bit() -> None:
    params = {"w": jnp.asarray(np.random.default_rng(0).normal(size=2000), jnp.bfloat16)}
    tx = master_weights(optax.sgd(2.0))
    around = optax.lookahead(tx, 1000, 0.5)
    pair = optax.LookaheadParams(params, params)
    updates, _ = around.update(params, around.init(pair), pair)
    expected, _ = tx.update(params, tx.init(params), params)
    assert updates.fast["w"].dtype == jnp.float32
    np.testing.assert_array_equal(updates.fast["w"], expected["w"])


def test_float0_gradients_are_passed_through() -> None:
    """As stock does where nothing computes with them."""
    params = {"w": jnp.ones(3, jnp.bfloat16), "n": jnp.arange(3)}
    grads = jax.grad(lambda p: p["w"].astype(jnp.float32).sum(), allow_int=True)(params)
    tx = master_weights(optax.masked(optax.sgd(0.5), {"w": True, "n": False}))
    updates, _ = tx.update(grads, tx.init(params), params)
    assert updates["n"].dtype == jax.dtypes.float0
    np.testing.assert_array_equal(updates["w"], -0.5)


@pytest.mark.skipif(
    not hasattr(getattr(optax, "contrib", None), "schedule_free_adamw"),
    reason="it came with optax 0.2.3",
)
def test_params_to_evaluate_are_those_of_the_inner_state() -> None:
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    tx = master_weights(optax.contrib.schedule_free_sgd(0.1))
    updates, state = tx.update(params, tx.init(params), params)
    params = optax.contrib.schedule_free_eval_params(state.inner_state, state.master)
    assert params["w"].dtype == updates["w"].dtype == jnp.float32
    np.testing.assert_allclose(params["w"], 0.9, rtol=1e-6)  # The first average is the first step.


@HALVES
def test_adam_follows_float64(dtype: Any) -> None:
    params, goal = tree_of(dtype), in_float64(tree_of(jnp.float32, seed=1))
    wide = tree_map(jnp.asarray, tree_map(lambda leaf: leaf.astype(np.float32), goal))
    tx = master_weights(optax.adam(1e-3))
    _, state = train(
        tx, params, 300, lambda p: tree_map(lambda x, y: x.astype(jnp.float32) - y, p, wide)
    )
    exact = in_float64(params)
    for name in params:
        m = v = 0.0
        for count in range(1, 301):
            # The model computes with rounded params.
            rounded = np.asarray(jnp.asarray(exact[name], dtype)).astype(float)
            direction, m, v = adam_step(rounded - goal[name], m, v, count)
            exact[name] = exact[name] - 1e-3 * direction
        np.testing.assert_allclose(state.master[name], exact[name], atol=2e-4)


@HALVES
@pytest.mark.parametrize("jit", one_of(2, [False, True]), ids=["eager", "jit"])
def test_apply_updates_gives_the_rounded_copy(dtype: Any, jit: bool) -> None:
    """Also across 60 orders of magnitude, where one float32 update cannot reach every number."""
    random = np.random.default_rng(0)
    scale = 30 if dtype == jnp.bfloat16 else 4
    before, after = (10.0 ** random.uniform(-scale, scale, 5000) for _ in range(2))
    signs = random.choice([-1, 0, 1], 5000)
    params = jnp.asarray(before, dtype)
    before = np.asarray(params, float)
    grads = jnp.asarray(before - signs * after, jnp.float32)
    tx = master_weights(optax.sgd(1.0))

    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    landed, state = (jax.jit(step) if jit else step)(params, tx.init(params))
    bits = functools.partial(jax.lax.bitcast_convert_type, new_dtype=jnp.uint16)
    np.testing.assert_array_equal(bits(landed), bits(state.master.astype(dtype)))
    near = np.asarray(jnp.asarray(signs * after, dtype), float)
    error = np.abs(np.asarray(landed, float) - near)
    assert (error <= 2.0**-7 * np.maximum(np.abs(near), 2.0**-16 * before)).all()


def test_a_param_that_was_changed_elsewhere_is_followed() -> None:
    params = {"w": jnp.ones((4,), jnp.bfloat16)}
    tx = master_weights(optax.sgd(1e-3))
    params, state = train(tx, params, 1)
    clipped = {"w": params["w"].at[1].set(0.5)}
    _, state = tx.update({"w": jnp.ones((4,), jnp.bfloat16)}, state, clipped)
    np.testing.assert_allclose(state.master["w"], [0.998, 0.499, 0.998, 0.998], rtol=1e-6)


def test_leaves_that_are_not_in_half_precision_get_the_updates_of_stock() -> None:
    params = {"f": jnp.ones(3) / 3, "c": jnp.ones(2, jnp.complex64), "n": jnp.arange(3)}
    grads = tree_map(lambda p: p * 0.1, params)
    tx, inner = master_weights(optax.sgd(0.1)), optax.sgd(0.1)
    updates, state = tx.update(grads, tx.init(params), params)
    expected, _ = inner.update(grads, inner.init(params), params)
    for got, stock in zip(leaves(updates), leaves(expected)):
        assert got.dtype == stock.dtype
        np.testing.assert_array_equal(got, stock)
    for got, moved in zip(leaves(state.master), leaves(optax.apply_updates(params, expected))):
        np.testing.assert_array_equal(got, moved)


def test_params_and_state_may_be_donated() -> None:
    params = tree_of(jnp.bfloat16, jnp.float32)
    tx = master_weights(optax.adam(1e-3))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(params, state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(2):
        params, state = step(params, state)
    assert all(np.isfinite(leaf).all() for leaf in leaves(in_float64(params)))


def test_the_state_keeps_its_dtypes() -> None:
    for wide in (False, True):
        with x64(wide):
            params = tree_of(jnp.bfloat16, jnp.float32)
            tx = master_weights(optax.adam(1e-3))
            state = tx.init(params)
            updates, after = jax.jit(tx.update)(params, state, params)
            assert dtypes_of(after) == dtypes_of(state)
            assert {*dtypes_of(updates)} == {jnp.dtype(jnp.float32)}


def test_leaves_without_a_strong_dtype_cause_no_second_trace() -> None:
    params = {"w": jnp.ones(3, jnp.bfloat16), "number": 0.5, "weak": jnp.asarray(0.5), "n": 3}
    tx, traces = master_weights(optax.sgd(0.1, momentum=0.9)), 0

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        nonlocal traces
        traces += 1
        return tx.update(tree_map(jnp.zeros_like, params), state, params)

    state = tx.init(params)
    for _ in range(3):
        updates, state = step(params, state)
    assert traces == 1
    # apply_updates makes the params strong, on stock too: that is the second and last trace.
    for _ in range(3):
        params = optax.apply_updates(params, updates)
        updates, state = step(params, state)
    assert traces == 2
    _, eager = tx.update(updates, tx.init(params), params)
    assert types(eager) == types(tx.init(params))


def test_a_copy_may_be_float64() -> None:
    with x64():
        tx = master_weights(optax.sgd(1e-3), dtype=jnp.float64)
        end, state = train(tx, jnp.ones((3,), jnp.bfloat16), 10)
        assert state.master.dtype == jnp.float64
        np.testing.assert_allclose(state.master, 0.99, rtol=1e-12)
        assert end.dtype == jnp.bfloat16


def test_the_inner_transformation_sees_float32() -> None:
    seen = []

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        seen.append((grads["w"].dtype, params["w"].dtype))
        return grads, state

    inner = optax.GradientTransformation(lambda _: (), update)
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    tx = master_weights(inner)
    tx.update(params, tx.init(params), params)
    assert seen == [(jnp.float32, jnp.float32)]


def test_nodes_only_receive_arrays() -> None:
    params = Converting(jnp.ones(3, jnp.bfloat16))
    end, state = train(master_weights(optax.sgd(1e-3)), params, 10)
    assert isinstance(end, Converting)
    np.testing.assert_allclose(state.master.child, 0.99, rtol=1e-6)


def test_wrong_calls_are_refused_with_advice() -> None:
    tx, params = master_weights(optax.sgd(0.1)), {"w": jnp.ones(3, jnp.bfloat16)}
    with pytest.raises(ValueError, match=r"tx\.update\(grads, state, params\)"):
        tx.update(params, tx.init(params))
    with pytest.raises(ValueError, match="structure of the params"):
        tx.update({"v": params["w"]}, tx.init(params), params)


@pytest.mark.parametrize("option", ["copy", "rounding_key", "narrow_state"])
def test_an_option_of_1_x_is_refused_with_advice(option: str) -> None:
    options: Any = {option: None}
    with pytest.raises(TypeError, match=rf"got {option}\..*write master_weights\(tx\)\."):
        master_weights(optax.sgd(0.1), **options)


def test_check_accepts_it() -> None:
    params = tree_of(jnp.bfloat16)
    assert isinstance(master_weights(optax.adam(1e-3)).init(params), MasterWeightsState)
    assert optax_dtypefix.check(master_weights(optax.adam(1e-3)), params).ok


@HALVES
def test_frozen_params_keep_their_bits(dtype: Any) -> None:
    labels = {"w": "sgd", "mask": "frozen"}
    tx = optax.multi_transform({"sgd": optax.sgd(0.1), "frozen": optax.set_to_zero()}, labels)
    tx = master_weights(tx)
    mask = jnp.asarray([0.0, jnp.inf, -jnp.inf, 1e-3], dtype)
    params = {"w": jnp.ones(2, dtype), "mask": mask}
    trained = train(tx, params, 3)[0]
    bits = [jax.lax.bitcast_convert_type(x, jnp.uint16) for x in (trained["mask"], mask)]
    np.testing.assert_array_equal(*bits)
    assert (trained["w"] < 1).all()


def test_params_come_back_from_the_largest_number() -> None:
    tx, params = master_weights(optax.sgd(1.0)), jnp.asarray([65000.0], jnp.float16)
    state = tx.init(params)
    for grad, expected in [(-1000.0, 65504.0), (30000.0, 36000.0)]:
        updates, state = tx.update(jnp.asarray([grad], jnp.float16), state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_array_equal(np.asarray(params, float), [expected])


def test_derivative_is_that_of_a_cast() -> None:
    params = jnp.asarray([1.0, 2.0], jnp.bfloat16)

    def total(grads: Any) -> Any:
        tx = master_weights(optax.sgd(1.0))
        updates, _ = tx.update(grads, tx.init(params), params)
        return optax.apply_updates(params, updates).astype(jnp.float32).sum()

    for size in (0.1, 1e-6):
        found = jax.grad(total)(jnp.full(2, size))
        np.testing.assert_array_equal(found, [-1.0, -1.0])


def test_float8_params_are_left_alone() -> None:
    params = {"w": jnp.ones(2, jnp.bfloat16), "scale": jnp.ones(2, jnp.float8_e5m2)}
    tx = master_weights(optax.identity())
    updates, state = tx.update(params, tx.init(params), params)
    assert state.master["scale"].dtype == updates["scale"].dtype == jnp.float8_e5m2


def test_a_node_that_casts_the_copy_is_refused() -> None:
    @jax.tree_util.register_pytree_node_class
    class Narrow(Converting):
        def __init__(self, child: Any) -> None:
            super().__init__(jnp.asarray(child, jnp.bfloat16))

    with pytest.raises(ValueError, match="casts"):
        master_weights(optax.sgd(0.1)).init(Narrow(jnp.ones(2)))
