from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import assert_keeps_the_contract, drifting, leaves, tree_map, tree_of


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
def test_it_takes_an_inner_transformation_that_drifts(wrap: Any, params: Any, grads: Any) -> None:
    assert_keeps_the_contract(wrap(drifting()), tree_of(*params), tree_of(*grads))


def test_a_gradient_that_is_not_finite_is_left_out() -> None:
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


@pytest.mark.parametrize(("step", "expected"), [(0, 2.5), (1, 1.0)])
def test_periodic_update_gives_the_dtypes_of_the_old_tensors(step: int, expected: float) -> None:
    new, old = {"w": jnp.full(3, 2.5, jnp.float32)}, {"w": jnp.ones(3, jnp.bfloat16)}
    got = jax.jit(lambda *args: optax.periodic_update(*args, 2))(new, old, jnp.asarray(step))
    assert got["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(got["w"], expected)
