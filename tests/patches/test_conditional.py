from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support.contract import assert_keeps_the_contract
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.transformations import averaging, drifting
from support.trees import leaves, tree_map, tree_of


def every_other(step: Any) -> Any:
    return step % 2 == 0


WRAPPERS = {
    name: build
    for name, build in {
        "apply_if_finite": lambda inner: optax.apply_if_finite(inner, 3),
        "maybe_update": lambda inner: optax.maybe_update(inner, every_other),
        "conditionally_transform": lambda inner: optax.conditionally_transform(inner, every_other),
        "conditionally_mask": lambda inner: optax.conditionally_mask(inner, every_other),
    }.items()
    if hasattr(optax, name)
}
pytestmark = pytest.mark.filterwarnings("ignore:.*maybe_update.*")

FUZZ = FuzzCase(lambda draw: WRAPPERS[draw.of(*WRAPPERS)](draw.inner()))
PROGRAMS = {
    name: Program(lambda wrap=wrap: wrap(optax.sgd(0.1))) for name, wrap in WRAPPERS.items()
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize(
    ("params", "grads"),
    [
        (("bfloat16",), ("bfloat16",)),
        (("bfloat16",), ("float32",)),
        (("float32",), ("bfloat16",)),
        (("float32", "int32"), ("float32", "int32")),
    ],
    ids=str,
)
def test_the_inner_transformation_may_change_dtypes(wrap: Any, params: Any, grads: Any) -> None:
    assert_keeps_the_contract(wrap(drifting()), tree_of(*params), tree_of(*grads))


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_the_inner_transformation_may_be_any_object_with_both_methods(wrap: Any) -> None:
    inside = drifting()
    tx = wrap(types.SimpleNamespace(init=inside.init, update=inside.update))
    assert_keeps_the_contract(tx, *[tree_of(jnp.bfloat16)] * 2)


def test_a_gradient_that_is_not_finite_is_skipped() -> None:
    tx = optax.apply_if_finite(optax.trace(0.5), 3)
    params = tree_of(jnp.bfloat16)
    state = tx.init(params)
    _, state = tx.update(params, state, params)
    bad = tree_map(lambda leaf: jnp.full_like(leaf, jnp.nan), params)
    updates, after = jax.jit(tx.update)(bad, state, params)
    assert all(not np.asarray(leaf).any() for leaf in leaves(updates))
    for leaf, other in zip(leaves(after.inner_state), leaves(state.inner_state)):
        np.testing.assert_array_equal(leaf, other)
    assert int(after.total_notfinite) == 1


@pytest.mark.skipif(
    not hasattr(optax, "GradientTransformationExtraArgs"), reason="they came with optax 0.1.5"
)
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_extra_arguments_reach_the_inner_transformation(wrap: Any) -> None:
    def update(grads: Any, state: Any, params: Any = None, *, scale: Any, **_: Any) -> Any:
        del params
        return tree_map(lambda g: g * scale, grads), state

    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    tx = wrap(inner)
    params = tree_of(jnp.bfloat16)
    updates, _ = tx.update(params, tx.init(params), params, scale=jnp.float32(2))
    np.testing.assert_array_equal(updates["w"], 2 * params["w"])
    assert updates["w"].dtype == jnp.bfloat16


def test_the_inner_transformation_may_be_named() -> None:
    tx = optax.apply_if_finite(inner=drifting(), max_consecutive_errors=3)
    assert_keeps_the_contract(tx, tree_of(jnp.bfloat16))


MIXES = [
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("float32", "int8"),
    ("bfloat16", "float32"),
    ("bfloat16", "float16"),
]


@pytest.mark.parametrize("wrap", one_of(5, WRAPPERS.values()), ids=WRAPPERS)
@pytest.mark.parametrize(("params_dtype", "grads_dtype"), MIXES)
@pytest.mark.parametrize("rate", one_of(2, [1e-2, 1e-9]))
def test_updates_are_those_of_the_inner_transformation(
    wrap: Any, params_dtype: Any, grads_dtype: Any, rate: float
) -> None:
    """Compare the first step of momentum with float64."""
    inner = optax.sgd(rate, momentum=0.5)
    tx = wrap(inner)
    params = {"w": jnp.zeros(3, params_dtype)}
    grads = {"w": jnp.asarray([1, -2, 3], grads_dtype)}
    expected, _ = inner.update(grads, inner.init(params), params)
    state = tx.init(params)
    updates, state = jax.jit(tx.update)(grads, state, params)
    assert updates["w"].dtype == expected["w"].dtype
    exact = -rate * np.asarray([1.0, -2.0, 3.0])
    np.testing.assert_allclose(np.asarray(updates["w"]).astype(float), exact, rtol=4e-3)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_complex_gradients_of_a_real_inner_state_raise_as_in_stock(wrap: Any) -> None:
    """``init`` cannot know that gradients will be complex."""
    tx = wrap(averaging(jnp.float32(0)))
    params = {"w": jnp.ones(3)}
    with pytest.raises(TypeError):
        tx.update({"w": jnp.full(3, 1 + 2j)}, tx.init(params), params)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_the_inner_transformation_gets_the_users_gradients(wrap: Any) -> None:
    seen = []

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        seen.append((str(grads["w"].dtype), str(params["w"].dtype)))
        return tree_map(lambda g: g.astype(jnp.float32), grads), state

    tx = wrap(optax.GradientTransformation(lambda _: (), update))
    params = {"w": jnp.ones(3, jnp.float32)}
    updates, _ = tx.update({"w": jnp.ones(3, jnp.int8)}, tx.init(params), params)
    assert {*seen} == {("int8", "float32")}
    assert updates["w"].dtype == jnp.float32


@pytest.mark.parametrize("name", [n for n in WRAPPERS if n in ("conditionally_transform",)])
def test_skipped_gradients_have_the_dtype_of_transformed_ones(name: str) -> None:
    tx = WRAPPERS[name](optax.scale(0.5))
    params = {"w": jnp.ones(3, jnp.float32)}
    grads = {"w": jnp.asarray([1, 2, 3], jnp.int8)}
    state = tx.init(params)
    for factor in (0.5, 1.0):
        updates, state = jax.jit(tx.update)(grads, state, params)
        assert updates["w"].dtype == jnp.float32
        np.testing.assert_array_equal(updates["w"], factor * np.asarray([1, 2, 3]))


def test_periodic_update_does_not_truncate_floats() -> None:
    """Like stock, the patch raises for a float in place of an integer."""
    new, old = {"w": jnp.full(3, 2.5)}, {"w": jnp.ones(3, jnp.int32)}
    with pytest.raises(TypeError):
        optax.periodic_update(new, old, jnp.asarray(0), 2)


@pytest.mark.parametrize(("step", "expected"), [(0, 2.5), (1, 1.0)])
def test_periodic_update_keeps_the_dtypes_of_the_old_tensors(step: int, expected: float) -> None:
    new, old = {"w": jnp.full(3, 2.5, jnp.float32)}, {"w": jnp.ones(3, jnp.bfloat16)}
    got = jax.jit(lambda *args: optax.periodic_update(*args, 2))(new, old, jnp.asarray(step))
    assert got["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(got["w"], expected)
