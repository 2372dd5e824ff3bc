from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_dtypefix
from support.contract import assert_keeps_the_contract
from support.patch_cases import FuzzCase, Program, fuzz_case
from support.transformations import drifting
from support.trees import dtypes_of, leaves, tree_map, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator


# optax 0.1.2 calls functions of jax by their deprecated names.
pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_:FutureWarning")

WITH_ANY = ("learning_rate", "float16_eps", "promotion", "global_norm", "conditional")
FUZZ = FuzzCase(
    lambda draw: draw.of(*(fuzz_case(patch_id).build for patch_id in WITH_ANY))(draw),
    any_gradients=True,
)
PROGRAMS = {
    "bfloat16": Program(lambda: optax.trace(0.9), jnp.bfloat16),
    "chain": Program(lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))),
}


@pytest.fixture(autouse=True)
def every_transform() -> Iterator[None]:
    optax_dtypefix.apply("every_transform")
    yield
    optax_dtypefix.revert("every_transform")


def init(params: Any) -> Any:
    return tree_map(jnp.zeros_like, params)


def update(grads: Any, state: Any, params: Any = None) -> Any:
    del params
    return grads, state


BUILDERS = {
    "trace": lambda: optax.trace(0.9),
    "adamw": lambda: optax.adamw(1e-3),
    "rmsprop": lambda: optax.rmsprop(1e-3),
    "adafactor": lambda: optax.adafactor(1e-3),
    "lamb": lambda: optax.lamb(1e-3),
    "masked": lambda: optax.masked(optax.adam(1e-3), {"w": True, "b": False}),
    "multi_transform": lambda: optax.multi_transform(
        {"a": optax.adam(1e-3), "b": optax.sgd(0.1, momentum=0.9)}, {"w": "a", "b": "b"}
    ),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(1e-3), 2),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(1e-3), 3),
    "own": drifting,
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
@pytest.mark.parametrize(
    ("params", "grads"),
    [("bfloat16", "float32"), ("float32", "bfloat16"), ("float16", "float32")],
)
def test_gradients_may_have_any_dtype(build: Any, params: str, grads: str) -> None:
    assert_keeps_the_contract(build(), tree_of(params), tree_of(grads))


def test_the_moment_is_computed_in_the_wider_dtype() -> None:
    tx = optax.trace(0.5)
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    grads = {"w": jnp.full(3, 1 + 2**-12, jnp.float32)}  # bfloat16 would round it to 1.
    updates, state = tx.update(grads, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"], np.float32(1 + 2**-12))
    assert state.trace["w"].dtype == jnp.bfloat16


def test_transformations_of_the_same_functions_stay_equal() -> None:
    one, other = (optax.GradientTransformation(init, update) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != optax.GradientTransformation(init, init)
    assert optax.GradientTransformation(*one) == one


def test_a_transformation_can_be_copied_and_pickled() -> None:
    tx = optax.GradientTransformation(init, update)
    assert pickle.loads(pickle.dumps(tx)) == tx
    assert copy.deepcopy(tx) == tx
    assert isinstance(tx, optax.GradientTransformation)
    assert tx.update.__name__ == "update"


def test_reverting_restores_the_class() -> None:
    held = optax.GradientTransformation(init, update)
    optax_dtypefix.revert("every_transform")
    stock = optax.GradientTransformation(init, update)
    assert stock.update is update
    assert held.update is not update
    params = tree_of(jnp.bfloat16)
    assert leaves(held.init(params))[0].dtype == jnp.bfloat16


def test_the_first_argument_of_update_may_have_any_name() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return tree_map(lambda g: g * jnp.float32(2), grads), state

    tx = optax.GradientTransformation(init, update)
    grads = tree_of("bfloat16")
    got, _ = tx.update(grads=grads, state=tx.init(grads))  # type: ignore[call-arg]
    assert {*dtypes_of(got)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("first", [jnp.float32, jnp.int32])
def test_arguments_that_are_no_hyperparameters_stay_python_values(first: Any) -> None:
    """As arrays they would be tracers under jit, so ``if nesterov`` would raise."""
    seen = set()

    def factory(learning_rate: Any, steps: int, nesterov: bool = False) -> Any:
        seen.add((type(steps), type(nesterov)))
        return optax.sgd(learning_rate, 0.9, nesterov)

    tx = optax.inject_hyperparams(factory, static_args="steps")(0.1, 3)
    params = tree_of(jnp.float32, first)
    jax.eval_shape(tx.init, params)
    assert_keeps_the_contract(tx, params)
    assert seen == {(int, bool)}
