from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_dtypefix
from optax_dtypefix._contract.x64 import x64
from support.contract import assert_keeps_the_contract
from support.nodes import Converting
from support.patch_cases import FuzzCase, Program
from support.trees import dtypes_of, in_float64, tree_map, tree_of, types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fuzzing import Draw


# Old releases call deprecated functions of JAX.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def fuzzed(draw: Draw) -> Any:
    return draw.of(
        lambda: optax.ema(draw.of(0.9, 0.999)),
        lambda: optax.trace(0.9, nesterov=draw.of(True, False)),
        lambda: optax.apply_every(draw.of(1, 2)),
        lambda: optax.sgd(draw.rate(), momentum=0.9),
    )()


FUZZ = FuzzCase(fuzzed)
PROGRAMS = {
    "ema": Program(lambda: optax.ema(0.9)),
    "momentum": Program(lambda: optax.sgd(1e-2, momentum=0.9)),
    "apply_every": Program(lambda: optax.apply_every(2)),
    "chosen": Program(lambda: optax.trace(0.9, accumulator_dtype=jnp.bfloat16), jnp.bfloat16),
}

HALVES = pytest.mark.parametrize(
    ("dtype", "precision"), [(jnp.bfloat16, 2**-8), (jnp.float16, 2**-11)]
)
BUILDS = {
    "ema": lambda: optax.ema(0.99),
    "trace": lambda: optax.trace(0.99),
    "nesterov": lambda: optax.trace(0.99, nesterov=True),
    "apply_every": lambda: optax.apply_every(3),
}
by_build = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)


@pytest.fixture(autouse=True, scope="module")
def asked_for() -> Iterator[None]:
    assert not optax_dtypefix.is_applied("float32_averages")
    optax_dtypefix.apply("float32_averages")
    yield
    optax_dtypefix.revert("float32_averages")


def run(tx: Any, gradients: Any) -> tuple[Any, Any]:
    """Run a step for each gradient. Return the updates and the last state."""

    def step(state: Any, grads: Any) -> Any:
        return tx.update(grads, state, grads)[::-1]

    scan = jax.jit(lambda g: jax.lax.scan(step, tx.init(g[0]), g))
    state, updates = scan(gradients)
    assert updates.dtype == gradients.dtype
    return in_float64(updates), state


def numbers(dtype: Any) -> Any:
    return jnp.asarray(np.random.default_rng(0).normal(1, 1, size=(1000, 4)), dtype)


@HALVES
def test_ema_follows_float64(dtype: Any, precision: float) -> None:
    gradients = numbers(dtype)
    updates, state = run(optax.ema(0.999), gradients)
    average = np.zeros(4)
    for grad in in_float64(gradients):
        average = 0.999 * average + 0.001 * grad
    assert state.ema.dtype == jnp.float32
    np.testing.assert_allclose(state.ema, average, rtol=1e-4)
    np.testing.assert_allclose(updates[-1], average / (1 - 0.999**1000), rtol=precision)


@HALVES
@pytest.mark.parametrize("nesterov", [False, True])
def test_trace_follows_float64(dtype: Any, precision: float, nesterov: bool) -> None:
    gradients = numbers(dtype)
    updates, state = run(optax.trace(0.999, nesterov=nesterov), gradients)
    total = np.zeros(4)
    for grad in in_float64(gradients):
        total = 0.999 * total + grad
    assert state.trace.dtype == jnp.float32
    np.testing.assert_allclose(state.trace, total, rtol=1e-4)
    exact = 0.999 * total + grad if nesterov else total
    np.testing.assert_allclose(updates[-1], exact, rtol=precision)


@HALVES
def test_apply_every_follows_float64(dtype: Any, precision: float) -> None:
    gradients = numbers(dtype)
    updates, state = run(optax.apply_every(1000), gradients)
    assert state.grad_acc.dtype == jnp.float32
    np.testing.assert_allclose(updates[-1], in_float64(gradients).sum(axis=0), rtol=precision)
    np.testing.assert_array_equal(updates[:-1], 0)


@by_build
def test_keeps_the_contract(build: Any) -> None:
    for dtypes in ((jnp.bfloat16,), (jnp.float16, jnp.float32), (jnp.bfloat16, jnp.complex64)):
        assert_keeps_the_contract(build(), tree_of(*dtypes))
        with x64():
            assert_keeps_the_contract(build(), tree_of(*dtypes))


@by_build
def test_an_update_is_as_wide_as_gradient_and_param(build: Any) -> None:
    for params, grads in (
        (tree_of(jnp.bfloat16), tree_of(jnp.float32)),
        (tree_of(jnp.float32), tree_of(jnp.bfloat16)),
    ):
        tx = build()
        updates, _ = tx.update(grads, tx.init(params), params)
        assert types(updates) == types(tree_of(jnp.float32))


@by_build
def test_a_state_restored_from_stock_keeps_its_dtypes(build: Any) -> None:
    params = tree_of(jnp.bfloat16)
    tx = build()
    narrow = tree_map(
        lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float32 else leaf,
        tx.init(params),
    )
    _, state = jax.jit(tx.update)(params, narrow, params)
    assert dtypes_of(state) == dtypes_of(narrow)


def test_a_dtype_that_the_user_chose_is_kept() -> None:
    params = tree_of(jnp.bfloat16)
    for tx, field in (
        (optax.ema(0.9, accumulator_dtype=jnp.bfloat16), "ema"),
        (optax.trace(0.9, accumulator_dtype=jnp.bfloat16), "trace"),
    ):
        state = tx.init(params)
        assert {*dtypes_of(getattr(state, field))} == {jnp.dtype(jnp.bfloat16)}


def test_nodes_may_convert_their_children() -> None:
    params = Converting(jnp.ones(3, jnp.bfloat16))
    tx = optax.trace(0.9)
    updates, state = jax.jit(tx.update)(params, tx.init(params), params)
    assert isinstance(updates, Converting)
    assert state.trace.child.dtype == jnp.float32


def test_momentum_of_sgd_is_float32() -> None:
    params = tree_of(jnp.bfloat16)
    tx = optax.sgd(0.1, momentum=0.99)
    assert {*dtypes_of(tx.init(params))} >= {jnp.dtype(jnp.float32)}


@by_build
def test_without_params_updates_are_as_wide_as_on_stock(build: Any) -> None:
    halves, singles = tree_of(jnp.bfloat16), tree_of(jnp.float32)
    for params in (halves, singles):
        tx = build()
        updates, _ = jax.jit(tx.update)(params, tx.init(params))
        assert types(updates) == types(params)


@by_build
def test_without_params_gradients_stand_in_for_them(build: Any) -> None:
    """The state is float32 for any params, so it does not tell."""
    tx, grads = build(), tree_of(jnp.bfloat16)
    updates, _ = jax.jit(tx.update)(grads, tx.init(tree_of(jnp.float32)))
    assert types(updates) == types(grads)
