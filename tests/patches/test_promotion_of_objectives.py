"""Functions of the user inside sophia and sam run in the user's modes, on the user's dtypes."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

from optax_dtypefix._contract.x64 import x64
from support.builders import stock_of
from support.contract import assert_keeps_the_contract
from support.thorough import one_of
from support.trees import dtypes_of, leaves, tree_map, tree_of

pytestmark = pytest.mark.rule("C7")

RELEASE = Version(optax.__version__)

needs_sophia = pytest.mark.skipif(Version("0.2.5") > RELEASE, reason="sophia came with optax 0.2.5")


@needs_sophia
def test_the_objective_of_sophia_runs_in_the_users_64_bit_mode() -> None:
    wide = []

    def objective(params: Any) -> Any:
        wide.append(jnp.result_type(float) == jnp.float64)
        label = jnp.asarray(2**40, jnp.int64)  # The label needs more than 32 bits.
        return jnp.sum(params["w"] ** 4) * (label // 2**40).astype(jnp.float32)

    with x64():
        tx, params = optax.contrib.sophia(0.1), {"w": jnp.ones(3, jnp.float32)}
        updates, state = tx.update(params, tx.init(params), params, obj_fn=objective)
        assert all(wide)
        assert wide
        assert {*dtypes_of(updates)} == {jnp.dtype(jnp.float32)}
        np.testing.assert_allclose(state[0].nu["w"], 0.01 * 12, rtol=1e-5)


@needs_sophia
def test_the_objective_of_sophia_gets_params_of_several_dtypes() -> None:
    seen = []

    def objective(params: Any) -> Any:
        seen.append(dtypes_of(params))
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves(params))

    tx, params = optax.contrib.sophia(0.1), tree_of(jnp.float32, jnp.bfloat16)
    tx.update(params, tx.init(params), params, obj_fn=objective)
    assert seen
    assert all(dtypes == dtypes_of(params) for dtypes in seen)


@needs_sophia
@pytest.mark.parametrize("enabled", one_of(2, [False, True]))
def test_the_estimator_draws_the_directions_of_stock(enabled: bool) -> None:
    """The estimate for a Hessian without a diagonal is a sum of products of the directions."""
    sophia = sys.modules["optax.contrib._sophia"]
    build = sophia.hutchinson_estimator_diag_hessian

    def objective(params: Any) -> Any:
        x = params["w"]
        return jnp.sum(x * jnp.roll(x, 1) * jnp.arange(1, 17, dtype=x.dtype))

    with x64(enabled):
        params = {"w": jnp.ones(16, jnp.float32)}

        def estimate(build: Any) -> Any:
            tx = build(jax.random.PRNGKey(1))
            return tx.update(params, tx.init(params), params, obj_fn=objective)[0]["w"]

        expected = estimate(stock_of(build))
        np.testing.assert_array_equal(estimate(build), expected)


@needs_sophia
@pytest.mark.parametrize("extra_args", [{}, {"obj_fn": None}], ids=str)
def test_without_an_objective_the_error_of_sophia_is_that_of_stock(extra_args: Any) -> None:
    tx, params = optax.contrib.sophia(0.1), tree_of(jnp.bfloat16)
    with pytest.raises(ValueError, match="obj_fn must be provided"):
        tx.update(params, tx.init(params), params, **extra_args)


@needs_sophia
def test_the_objective_of_sophia_runs_in_strict_promotion() -> None:
    modes = []

    def objective(params: Any) -> Any:
        modes.append(jax.config.jax_numpy_dtype_promotion)
        return jnp.sum(params["w"] ** 2)

    with jax.numpy_dtype_promotion("strict"):
        tx, params = optax.contrib.sophia(0.1), {"w": jnp.ones(3)}
        tx.update(params, tx.init(params), params, obj_fn=objective)
    assert set(modes) == {"strict"}


@pytest.mark.skipif(Version("0.1.8") > RELEASE, reason="sam came with optax 0.1.8")
def test_the_gradient_function_of_sam_runs_in_strict_promotion() -> None:
    modes = []

    def grad_fn(params: Any, _: Any) -> Any:
        modes.append(jax.config.jax_numpy_dtype_promotion)
        return params

    with jax.numpy_dtype_promotion("strict"):
        tx, params = (
            optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True),
            {"w": jnp.ones(3)},
        )
        tx.update(params, tx.init(params), params, grad_fn=grad_fn)
    assert set(modes) == {"strict"}


@needs_sophia
def test_sophia_accepts_an_integer_leaf_inside_multi_steps() -> None:
    """Up to 0.2.7 the gradient of an integer leaf is a float, which the estimator lacks."""

    def objective(params: Any) -> Any:
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves(params))

    tx = optax.MultiSteps(optax.contrib.sophia(0.1), 2)
    params = tree_of(jnp.float32, jnp.int32)
    assert_keeps_the_contract(tx, params, extra=lambda _: {"obj_fn": objective})


@needs_sophia
@pytest.mark.parametrize("dtype", one_of(3, ["float32", "bfloat16", "float16"], 1))
def test_sophia_accepts_a_user_defined_estimator(dtype: str) -> None:
    def update(grads: Any, state: Any, params: Any = None, *, obj_fn: Any) -> Any:
        del grads
        diagonal = jnp.asarray(
            obj_fn(params, jnp.float32(2.0))
        )  # The objective takes a batch, too.
        return tree_map(lambda p: jnp.full_like(p, diagonal), params), state

    own = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    tx = optax.contrib.sophia(0.1, hessian_diagonal_fn=own)
    params = {"w": jnp.ones(2, dtype)}
    updates, _ = tx.update(
        params, tx.init(params), params, obj_fn=lambda p, batch: jnp.sum(p["w"]) * batch
    )
    assert updates["w"].dtype == jnp.dtype(dtype)
    assert np.all(np.abs(np.asarray(updates["w"], np.float32)) > 0.05)
