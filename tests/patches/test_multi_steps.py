from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version
from support import assert_keeps_the_contract, drifting, leaves, tree_map, tree_of

from optax_dtypefix import _dtypes
from optax_dtypefix._dtypes import x64
from optax_dtypefix.patches import (
    _demonstrate as demo,
)

RELEASE = Version(optax.__version__)
HAS_SKIP = "should_skip_update_fn" in inspect.signature(optax.MultiSteps).parameters
HAS_EXTRA_ARGS = hasattr(optax, "GradientTransformationExtraArgs")


OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"use_grad_mean": False},
    "schedule": {"every_k_schedule": lambda step: jnp.where(step > 0, 2, 3)},
}
if HAS_SKIP:
    OPTIONS["skip"] = {"should_skip_update_fn": optax.skip_not_finite}
    OPTIONS["skip large"] = {
        "should_skip_update_fn": functools.partial(optax.skip_large_updates, max_squared_norm=1e4)
    }


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize(
    "inner", [drifting, lambda: optax.adafactor(1e-2)], ids=["own", "adafactor"]
)
def test_a_drifting_inner_transformation_is_held(inner: Any, options: dict[str, Any]) -> None:
    tx = optax.MultiSteps(inner(), **{"every_k_schedule": 2, **options})
    assert_keeps_the_contract(tx, tree_of(jnp.bfloat16), tree_of(jnp.float32))
    assert demo.one_step(tx, demo.shapes(jnp.bfloat16)) is None


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.complex64])
def test_keeps_the_contract(dtype: Any) -> None:
    tx = optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 2)
    assert_keeps_the_contract(tx, tree_of(dtype))


def test_the_inner_transformation_may_be_anything_with_init_and_update() -> None:
    tx = optax.MultiSteps(optax.MultiSteps(optax.sgd(1.0), 2), 2)
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    assert_keeps_the_contract(tx, params)
    state, emitted = tx.init(params), []
    for _ in range(4):
        updates, state = tx.update(params, state, params)
        emitted.append(float(updates["w"][0]))
    assert emitted == [0.0, 0.0, 0.0, -1.0]


def test_params_may_be_none() -> None:
    tx = optax.MultiSteps(optax.sgd(1.0), 2)
    grads = tree_of(jnp.float32)
    updates, state = tx.update(grads, tx.init(grads))
    updates, state = tx.update(grads, state)
    np.testing.assert_allclose(updates["w"], -grads["w"], rtol=1e-6)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize(
    ("params_dtype", "grads_dtype", "tolerance"),
    [
        (jnp.float32, jnp.float32, 1e-6),
        (jnp.float32, jnp.bfloat16, 1e-2),
        (jnp.bfloat16, jnp.float32, 2e-2),
        (jnp.bfloat16, jnp.bfloat16, 2e-2),
        (jnp.complex64, jnp.complex64, 1e-6),
    ],
)
def test_the_window_is_accumulated(
    params_dtype: Any, grads_dtype: Any, tolerance: float, mean: bool
) -> None:
    tx = optax.MultiSteps(optax.sgd(1.0), 3, use_grad_mean=mean)
    params = tree_of(params_dtype)
    factor = 1 + 2j if jnp.issubdtype(grads_dtype, jnp.complexfloating) else 1
    window = [tree_map(lambda g: g * factor, tree_of(grads_dtype, seed=i)) for i in range(3)]
    state = tx.init(params)
    for grads in window:
        updates, state = jax.jit(tx.update)(grads, state, params)
    wide = np.complex128 if factor != 1 else np.float64
    total = sum(np.asarray(grads["w"]).astype(wide) for grads in window)
    expected = -total / 3 if mean else -total
    got = np.asarray(updates["w"]).astype(wide)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_float64_is_accumulated_in_float64() -> None:
    with x64():
        tx = optax.MultiSteps(optax.sgd(1.0), 2)
        params = {"w": jnp.zeros(3, jnp.float64)}
        state = tx.init(params)
        for value in (1.0, 1.0 + 1e-12):
            updates, state = tx.update({"w": jnp.full(3, value, jnp.float64)}, state, params)
        np.testing.assert_allclose(np.asarray(updates["w"]) + 1.0, -5e-13, rtol=1e-3)


def test_an_integer_leaf_stays() -> None:
    tx = optax.MultiSteps(optax.sgd(1.0), 2)
    params = {"w": jnp.ones(3), "n": jnp.asarray([4, 6], jnp.int32)}
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(params, state, params)
    assert updates["n"].dtype == jnp.int32
    np.testing.assert_array_equal(updates["n"], [-4, -6])


def test_an_int64_schedule_in_64_bit_mode() -> None:
    with x64():
        steps = jnp.asarray([2, 3], jnp.int64)
        tx = optax.MultiSteps(optax.sgd(1.0), lambda step: steps[jnp.minimum(step, 1)])
        params = {"w": jnp.ones(3, jnp.float32)}
        state = tx.init(params)
        emitted = []
        for _ in range(5):
            updates, state = tx.update(params, state, params)
            emitted.append(bool((updates["w"] != 0).all()))
        assert emitted == [False, True, False, False, True]
        assert state.mini_step.dtype == state.gradient_step.dtype == jnp.int32


@pytest.mark.skipif(not HAS_EXTRA_ARGS, reason="extra arguments came with optax 0.1.5")
def test_extra_arguments_may_be_functions_and_arrays() -> None:
    def update(
        grads: Any, state: Any, params: Any = None, *, value: Any, value_fn: Any, **_: Any
    ) -> Any:
        return tree_map(lambda g: g * (value + value_fn(params)).astype(g.dtype), grads), state

    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    tx = optax.MultiSteps(inner, 2)
    params = {"w": jnp.ones(3, jnp.bfloat16)}

    def extra(_: Any) -> dict[str, Any]:
        return {"value": jnp.float32(2.0), "value_fn": lambda params: params["w"].sum()}

    assert_keeps_the_contract(tx, params, extra=extra)
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(params, state, params, **extra(params))
    np.testing.assert_array_equal(np.asarray(updates["w"], np.float32), 5.0)


def test_a_leaf_that_is_held_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    _dtypes._SAID.clear()
    tx = optax.MultiSteps(drifting(), 2)
    params = tree_of(jnp.bfloat16)
    # setLevel: the level is what OPTAX_DTYPEFIX_LOG says, warning by default.
    with caplog.at_level(logging.INFO, logger="optax_dtypefix"):
        for _ in range(2):
            jax.jit(lambda: tx.update(params, tx.init(params), params))()
    said = [r.getMessage() for r in caplog.records if "drifts" in r.getMessage()]
    assert len(said) == 2 * len(leaves(params))  # In the state, and in the updates.
    assert any("['w']" in line and "bfloat16 to float32" in line for line in said)


def test_a_state_restored_from_stock_keeps_its_dtypes() -> None:
    """Stock 0.2.8 accumulates complex gradients in float32: such a checkpoint still runs."""
    tx = optax.MultiSteps(optax.sgd(0.1), 2)
    params = tree_of(jnp.complex64)
    state = tx.init(params)
    narrow = tree_map(jnp.real, state.acc_grads)
    _, state = jax.jit(tx.update)(params, state._replace(acc_grads=narrow), params)
    assert {leaf.dtype for leaf in leaves(state.acc_grads)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    "dtypes", [("bfloat16",), ("float16",), ("bfloat16", "float32"), ("complex64",)], ids=str
)
def test_strict_promotion_takes_any_dtype(dtypes: Any) -> None:
    params = tree_of(*dtypes)
    with jax.numpy_dtype_promotion("strict"):
        tx = optax.MultiSteps(optax.sgd(0.5), 2)
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(params, state, params)
    for got, param in zip(leaves(updates), leaves(params)):
        assert got.dtype == param.dtype
        np.testing.assert_allclose(in_complex(got), -0.5 * in_complex(param), rtol=1e-2)


def in_complex(leaf: Any) -> Any:
    return np.asarray(leaf).astype(np.complex128)
