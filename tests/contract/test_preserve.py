"""``preserve_dtypes``: a transformation of the user's keeps the dtypes of its state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_dtypefix
from optax_dtypefix import preserve_dtypes
from support.contract import assert_keeps_the_contract
from support.transformations import drifting
from support.trees import tree_map, tree_of, types

# optax 0.1.2 calls functions of jax by their deprecated names.
pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_:FutureWarning")

BUILDERS = {
    "own": drifting,
    "trace": lambda: optax.trace(0.9),
    "adamw": lambda: optax.adamw(1e-3),
    "rmsprop": lambda: optax.rmsprop(1e-3),
    "adafactor": lambda: optax.adafactor(1e-3),
    "lamb": lambda: optax.lamb(1e-3),
    "masked": lambda: optax.masked(drifting(), {"w": True, "b": False}),
    "multi_transform": lambda: optax.multi_transform(
        {"a": drifting(), "b": optax.sgd(0.1, momentum=0.9)}, {"w": "a", "b": "b"}
    ),
    "MultiSteps": lambda: optax.MultiSteps(drifting(), 2),
    "apply_if_finite": lambda: optax.apply_if_finite(drifting(), 3),
    "in a chain": lambda: optax.chain(optax.clip(1.0), preserve_dtypes(drifting())),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
@pytest.mark.parametrize(
    ("params", "grads"),
    [("bfloat16", "float32"), ("float32", "bfloat16"), ("float16", "float32")],
)
def test_gradients_may_have_any_dtype(build: Any, params: str, grads: str) -> None:
    assert_keeps_the_contract(preserve_dtypes(build()), tree_of(params), tree_of(grads))


def test_it_needs_no_patch() -> None:
    params = tree_of("bfloat16")
    with optax_dtypefix.disabled():
        tx = optax.trace(0.9)
        _, after = tx.update(tree_of("float32"), tx.init(params))
        assert types(after) == types(tree_of("float32")), "stock does not drift"
        assert_keeps_the_contract(preserve_dtypes(tx), params, tree_of("float32"))


def test_the_moment_is_computed_in_the_wider_dtype() -> None:
    with optax_dtypefix.disabled():
        tx = preserve_dtypes(optax.trace(0.5))
        params = {"w": jnp.ones(3, jnp.bfloat16)}
        grads = {"w": jnp.full(3, 1 + 2**-12, jnp.float32)}  # bfloat16 would round it to 1.
        updates, state = tx.update(grads, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"], np.float32(1 + 2**-12))
    assert state.trace["w"].dtype == jnp.bfloat16


@pytest.mark.parametrize("first", [jnp.float32, jnp.int32])
def test_arguments_that_are_no_hyperparameters_stay_python_values(first: Any) -> None:
    """As arrays they would be tracers under jit, so ``if nesterov`` would raise."""
    seen = set()

    def factory(learning_rate: Any, steps: int, nesterov: bool = False) -> Any:
        seen.add((type(steps), type(nesterov)))
        return preserve_dtypes(optax.sgd(learning_rate, 0.9, nesterov))

    tx = preserve_dtypes(optax.inject_hyperparams(factory, static_args="steps")(0.1, 3))
    params = tree_of(jnp.float32, first)
    jax.eval_shape(tx.init, params)
    assert_keeps_the_contract(tx, params)
    assert seen == {(int, bool)}


def test_fixes_any_transformation() -> None:
    tx = preserve_dtypes(drifting())
    composed = optax.chain(optax.clip(1.0), optax.masked(tx, {"w": True}))
    assert optax_dtypefix.check(composed, {"w": jax.ShapeDtypeStruct((3,), "bfloat16")}).ok
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    np.testing.assert_array_equal(np.asarray(updates["w"], np.float32), 1.0)


@pytest.mark.skipif(
    not hasattr(optax, "GradientTransformationExtraArgs"),
    reason="extra arguments came with optax 0.1.5",
)
def test_passes_extra_arguments() -> None:
    def update(grads: Any, state: Any, params: Any = None, *, scale: Any) -> Any:
        del params
        return tree_map(lambda g: g * scale, grads), state

    inner = optax.GradientTransformationExtraArgs(lambda params: params, update)
    tx = preserve_dtypes(inner)
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    updates, _ = tx.update(params, tx.init(params), params, scale=jnp.float32(2.0))
    assert updates["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(updates["w"], np.float32), 2.0)


@pytest.mark.skipif(
    not hasattr(optax, "with_extra_args_support"), reason="it came with optax 0.1.5"
)
def test_accepts_any_object_with_init_and_update() -> None:
    class Own:
        def init(self, params: Any) -> Any:
            return {"params": params, "name": "a word"}

        def update(self, grads: Any, state: Any, params: Any = None, *, scale: Any) -> Any:
            del params
            return tree_map(lambda g: g * scale, grads), state

    tx = preserve_dtypes(Own())  # type: ignore[arg-type]
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    updates, state = tx.update(params, tx.init(params), params, scale=jnp.float32(2.0))
    assert updates["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(updates["w"], np.float32), 2.0)
    assert state["name"] == "a word"
