"""What stock calls of the user's sees the user's leaves, whatever kind of callable it is."""

from __future__ import annotations

import collections
import functools
import re
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_dtypefix import master_weights
from optax_dtypefix._contract.x64 import x64
from optax_dtypefix.patches.releases import TESTED

HALF = jnp.bfloat16
IS_NEWEST = optax.__version__ == TESTED[-1]

pytestmark = [
    pytest.mark.rule("C7"),
    # Old releases call deprecated functions of JAX.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]


class Average:
    """A transformation of the user's, which works in one dtype alone."""

    def __init__(self) -> None:
        self.seen: set[Any] = set()

    def init(self, params: Any) -> Any:
        return jax.tree_util.tree_map(jnp.zeros_like, params)

    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        self.seen |= {updates["a"].dtype, params["a"].dtype}
        new = jax.tree_util.tree_map(lambda s, u: (s + u) / 2, state, updates)
        finite = jnp.all(jnp.isfinite(updates["a"]))
        state = jax.lax.cond(finite, lambda: new, lambda: state)
        return jax.tree_util.tree_map(lambda u: jax.lax.add(u, jnp.zeros(3, HALF)), updates), state


class Called(Average):
    """The same as an object that can be called."""

    def __call__(self, *args: Any) -> Any:
        return self.update(*args)


def function_of(user: Called) -> Callable[..., Any]:
    return lambda updates, state, params=None: user.update(updates, state, params)


KINDS: dict[str, Callable[[Called], Callable[..., Any]]] = {
    "function": function_of,
    "method": lambda user: user.update,
    "partial": lambda user: functools.partial(user.update),
    "jitted": lambda user: jax.jit(function_of(user)),
    "object": lambda user: user,
}
"""How a user may write an update."""

partition = getattr(optax, "partition", optax.multi_transform)

PLACES: dict[str, Callable[[Any], Any]] = {
    "chain": lambda tx: tx,
    "masked": lambda tx: optax.masked(tx, {"a": True}),
    "partition": lambda tx: partition({"x": tx}, {"a": "x"}),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
    "MultiSteps": lambda tx: optax.MultiSteps(tx, 1).gradient_transformation(),
}
if hasattr(optax, "conditionally_transform"):
    PLACES["conditionally_transform"] = lambda tx: optax.conditionally_transform(
        tx, lambda step: step >= 0
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_in_a_chain(kind: str, place: str) -> None:
    user = Called()
    link = PLACES[place](optax.GradientTransformation(user.init, KINDS[kind](user)))
    tx = optax.chain(optax.scale_by_adam(), link, optax.clip_by_global_norm(1.0))
    params, grads = {"a": jnp.ones(3, HALF)}, {"a": jnp.full(3, 0.01, HALF)}
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(grads, state, params)
    assert user.seen == {jnp.dtype(HALF)}
    assert updates["a"].dtype == HALF
    norm = np.linalg.norm(np.asarray(updates["a"], np.float64))
    np.testing.assert_allclose(norm, 1.0, rtol=0.01)


def in_half(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf.dtype == HALF, tree)


class Mask:
    """A mask of the user's, which looks at dtypes."""

    def of(self, tree: Any) -> Any:
        return in_half(tree)

    def __call__(self, tree: Any) -> Any:
        return in_half(tree)


MASKS = {
    "function": in_half,
    "method": Mask().of,
    "partial": functools.partial(in_half),
    "object": Mask(),
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_that_looks_at_dtypes(kind: str) -> None:
    params = {"a": jnp.ones(3, HALF), "b": jnp.ones(2, jnp.float32)}
    grads = {"a": jnp.full(3, 0.01, HALF), "b": jnp.full(2, 0.01, jnp.float32)}
    tx = optax.adamw(0.01, weight_decay=0.5, mask=MASKS[kind])
    updates, _ = tx.update(grads, tx.init(params), params)
    # Adam's first step has length 1; only params in half precision decay.
    np.testing.assert_allclose(np.asarray(updates["a"], np.float64), -0.01 * 1.5, rtol=0.01)
    np.testing.assert_allclose(np.asarray(updates["b"], np.float64), -0.01, rtol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, HALF])
def test_a_mask_of_any_mapping(dtype: Any) -> None:
    mask = collections.OrderedDict([("b", True), ("a", False)])
    params = collections.OrderedDict([("b", jnp.ones(3, dtype)), ("a", jnp.ones(2, dtype))])
    for tx in (
        optax.adamw(0.01, weight_decay=0.5, mask=mask),
        optax.chain(
            optax.scale_by_adam(), optax.masked(optax.scale(1.5), mask), optax.scale(-0.01)
        ),
    ):
        updates, _ = tx.update(params, tx.init(params), params)
        assert type(updates) is collections.OrderedDict
        np.testing.assert_allclose(np.asarray(updates["b"], np.float64), -0.015, rtol=0.01)
        np.testing.assert_allclose(np.asarray(updates["a"], np.float64), -0.01, rtol=0.01)


@pytest.mark.skipif(
    not IS_NEWEST and not hasattr(optax, "with_extra_args_support"),
    reason="the chain of this release takes tuples",
)
@pytest.mark.parametrize("place", ["chain", "flatten"])
def test_an_object_that_is_no_tuple_of_optax(place: str) -> None:
    user = Average()
    inner: Any = user if place == "chain" else optax.flatten(Flat(user))

    def built() -> Any:
        return optax.chain(optax.scale_by_adam(), inner)

    params = {"a": jnp.ones(3, HALF)}
    built().update(params, built().init(params), params)  # Another one, as if built in each step.
    assert user.seen == {jnp.dtype(HALF)}


class Flat:
    """A transformation of vectors."""

    def __init__(self, user: Average) -> None:
        self.user = user

    def init(self, params: Any) -> Any:
        return self.user.init({"a": params})

    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        updates, state = self.user.update({"a": updates}, state, {"a": params})
        return updates["a"], state


@pytest.mark.parametrize("kind", ["method", "partial", "tree"])
def test_labels_that_look_at_dtypes(kind: str) -> None:
    def labels(tree: Any) -> Any:
        return jax.tree_util.tree_map(lambda leaf: "half" if leaf.dtype == HALF else "wide", tree)

    class Labels:
        def of(self, tree: Any) -> Any:
            return labels(tree)

    given = {
        "method": Labels().of,
        "partial": functools.partial(labels),
        "tree": jax.tree_util.Partial(labels),
    }[kind]
    tx = partition({"half": optax.adam(0.01), "wide": optax.sgd(0.1)}, given)
    params = {"a": jnp.ones(3, HALF), "b": jnp.ones(2, jnp.float32)}
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(np.asarray(updates["a"], np.float64), -0.01, rtol=0.01)
    np.testing.assert_allclose(np.asarray(updates["b"], np.float64), -0.1, rtol=1e-6)


def test_a_mask_that_is_a_tree_with_a_call_is_no_function() -> None:
    @jax.tree_util.register_pytree_node_class
    class Model:
        def __init__(self, leaf: Any) -> None:
            self.leaf = leaf

        def __call__(self, *_: Any) -> Any:
            raise AssertionError("a model is no mask function")

        def tree_flatten(self) -> Any:
            return (self.leaf,), None

        @classmethod
        def tree_unflatten(cls, _: None, leaves: Any) -> Any:
            return cls(*leaves)

    masking = getattr(getattr(optax, "transforms", None), "_masking", None)
    if not hasattr(masking, "_mask_callable"):
        assert not IS_NEWEST, "_mask_callable has another name: door/links.py asks for it"
        pytest.skip("this release calls a mask that is a tree")
    params = Model(jnp.ones(3, HALF))
    tx = optax.chain(optax.scale_by_adam(), optax.masked(optax.scale(-2.0), Model(True)))
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(np.asarray(updates.leaf, np.float64), -2.0, rtol=0.01)


@pytest.mark.skipif(
    not IS_NEWEST and not hasattr(getattr(optax, "contrib", None), "mechanize"),
    reason="mechanize came with optax 0.1.7",
)
@pytest.mark.parametrize("kind", ["MultiSteps", "partial", "jitted"])
def test_what_mechanize_is_around(kind: str) -> None:
    adam = optax.adam(1.0)
    other = {
        "MultiSteps": optax.MultiSteps(adam, 1).gradient_transformation(),
        "partial": optax.GradientTransformation(adam.init, functools.partial(adam.update)),
        "jitted": optax.GradientTransformation(adam.init, jax.jit(adam.update)),
    }[kind]
    ends = []
    for base, dtype in ((adam, jnp.float32), (other, HALF)):  # In float32 it is stock's program.
        tx, params = optax.contrib.mechanize(base, s_init=0.1), {"a": jnp.ones(3, dtype)}
        state = tx.init(params)
        for _ in range(30):
            updates, state = tx.update(params, state, params)
            params = optax.apply_updates(params, updates)
        ends.append(np.asarray(params["a"], np.float64))
    assert max(ends[0]) < 0.5
    np.testing.assert_allclose(*ends, atol=0.03)


@pytest.mark.skipif(
    not IS_NEWEST and not hasattr(getattr(optax, "contrib", None), "sam"),
    reason="sam came with optax 0.1.8",
)
def test_a_gradient_function_sees_params_in_their_dtype_whatever_that_of_gradients() -> None:
    seen = set()

    def grad_fn(params: Any, _: Any) -> Any:
        seen.add(params["a"].dtype)
        return {"a": params["a"].astype(jnp.float32)}

    tx = optax.contrib.sam(optax.adam(0.1), optax.adam(0.1), opaque_mode=True)
    params = {"a": jnp.ones(3, HALF)}
    tx.update({"a": jnp.ones(3)}, tx.init(params), params, grad_fn=grad_fn)
    assert seen == {jnp.dtype(HALF)}


def test_a_dtype_that_a_link_asks_for_holds_around_another_tree() -> None:
    params = {"a": jnp.ones(3, HALF), "b": jnp.ones(2, HALF)}
    tx = optax.flatten(master_weights(optax.sgd(0.1)))  # Stock gives the link one vector.
    updates, _ = tx.update(params, tx.init(params), params)
    assert {leaf.dtype for leaf in jax.tree_util.tree_leaves(updates)} == {jnp.dtype("float32")}


@pytest.mark.skipif(
    not IS_NEWEST and not hasattr(getattr(optax, "contrib", None), "sam"),
    reason="sam came with optax 0.1.8",
)
@pytest.mark.parametrize("place", ["alone", "chain"])
def test_a_state_that_sam_starts_in_a_step_sees_the_users_params(place: str) -> None:
    seen = set()

    def init(params: Any) -> Any:
        seen.add(params["a"].dtype)
        return jax.tree_util.tree_map(jnp.zeros_like, params)

    user = optax.GradientTransformation(init, optax.identity().update)
    inner = optax.chain(user, optax.sgd(0.1)) if place == "chain" else user
    tx, params = optax.contrib.sam(optax.adam(0.1), inner), {"a": jnp.ones(3, HALF)}
    tx.update(params, tx.init(params), params)
    assert seen == {jnp.dtype(HALF)}


@pytest.mark.skipif(
    not IS_NEWEST and not hasattr(getattr(optax, "contrib", None), "sam"),
    reason="sam came with optax 0.1.8",
)
def test_float64_gradients_of_a_function_widen_no_arithmetic() -> None:
    def grad_fn(params: Any, _: Any) -> Any:
        return {"a": params["a"].astype(jnp.float64)}

    tx = optax.contrib.sam(optax.adam(0.1), optax.adam(0.1), opaque_mode=True)
    with x64():
        params = {"a": jnp.ones(7, HALF)}
        step = functools.partial(tx.update, grad_fn=grad_fn)
        program = str(jax.make_jaxpr(step)(params, tx.init(params), params))
    assert set(re.findall(r"f64\[7\] = (\w+)", program)) == {"convert_element_type"}
    assert "f32[7] = mul" in program
