"""Classes and decorators of the user's around transformations run as on stock, in each place."""

from __future__ import annotations

import collections
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import wrapt
from packaging.version import Version

import optax_dtypefix
from optax_dtypefix.patches.releases import TESTED

HALF = jnp.bfloat16
IS_NEWEST = optax.__version__ == TESTED[-1]

pytestmark = [
    pytest.mark.rule("C7"),
    # Old releases call deprecated functions of JAX.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]


def halved(updates: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf * jnp.asarray(0.5, leaf.dtype), updates)


@wrapt.decorator  # type: ignore[untyped-decorator]
def halve(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
    updates, state = wrapped(*args, **kwargs)
    return halved(updates), state


class Proxy:
    """Shows the attributes of what it is around, as many decorators do."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["function"], name)

    def __call__(self, *args: Any) -> Any:
        updates, state = self.function(*args)
        return halved(updates), state


class Halved(optax.GradientTransformation):
    """A subclass with an update of its own."""

    def update(self, *args: Any, **extra_args: Any) -> Any:
        updates, state = super().update(*args, **extra_args)  # type: ignore[safe-super]
        return halved(updates), state


# Stock puts nothing around an instance of this one.
Base: Any = getattr(optax, "GradientTransformationExtraArgs", optax.GradientTransformation)


class HalvedWithExtraArgs(Base):  # type: ignore[misc]
    """The same, which takes extra arguments."""

    def update(self, *args: Any, **extra_args: Any) -> Any:
        updates, state = super().update(*args, **extra_args)
        return halved(updates), state


def decorated(decorator: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda tx: optax.GradientTransformation(tx.init, decorator(tx.update))


KINDS: dict[str, Callable[[Any], Any]] = {
    "wrapt": decorated(halve),
    "proxy": decorated(Proxy),
    "subclass": lambda tx: Halved(*tx),
}

partition = getattr(optax, "partition", optax.multi_transform)

PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda tx: tx,
    "chain": lambda tx: optax.chain(tx, optax.scale(1.0)),
    "nested": lambda tx: optax.chain(optax.chain(optax.chain(tx)), optax.scale(1.0)),
    "masked": lambda tx: optax.masked(tx, {"a": True}),
    "partition": lambda tx: partition({"x": tx}, {"a": "x"}),
    "flatten": optax.flatten,
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
    "MultiSteps": lambda tx: optax.MultiSteps(tx, 1).gradient_transformation(),
}


UNPACKED = {("subclass", "chain"), ("subclass", "nested")}


@pytest.mark.parametrize("dtype", [jnp.float32, HALF])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_user_puts_around_an_update_runs_once(kind: str, place: str, dtype: Any) -> None:
    if (kind, place) in UNPACKED and not hasattr(optax, "with_extra_args_support"):
        assert not IS_NEWEST
        pytest.skip("stock's chain takes the fields of a tuple, not its methods")
    tx = PLACES[place](KINDS[kind](optax.trace(0.5)))
    params = {"a": jnp.ones(3, dtype)}
    updates, state = tx.update(params, tx.init(params), params)
    assert updates["a"].tolist() == [0.5] * 3
    updates, _ = tx.update(params, state, params)
    assert updates["a"].tolist() == [0.75] * 3


@pytest.mark.parametrize("dtype", [jnp.float32, HALF])
def test_a_subclass_around_a_transformation_that_was_built_before_the_import(dtype: Any) -> None:
    with optax_dtypefix.disabled():
        stock = optax.trace(0.5)
    tx, params = Halved(*stock), {"a": jnp.ones(3, dtype)}
    assert type(tx) is Halved
    updates, _ = tx.update(params, tx.init(params), params)
    assert updates["a"].tolist() == [0.5] * 3


DONATED: dict[str, tuple[int, ...]] = {"gradients": (0,), "state": (1,), "both": (0, 1)}


@pytest.mark.parametrize("what", DONATED)
@pytest.mark.parametrize("name", ["scale_by_adam", "trace", "scale_by_rms", "scale_by_lion"])
def test_a_jitted_link_that_donates(name: str, what: str) -> None:
    """After it has run, nothing of the step can be read: no counter, and no data."""
    build: Any = getattr(optax, name, None)
    if build is None:
        assert not IS_NEWEST, f"{name} is misspelt"
        pytest.skip("scale_by_lion came with optax 0.1.5")
    inner = build(0.9) if name == "trace" else build()
    link = optax.GradientTransformation(
        inner.init, jax.jit(inner.update, donate_argnums=DONATED[what])
    )
    tx = optax.chain(link, optax.trace(0.5), optax.scale(-0.01))
    params = {"a": jnp.ones(300, HALF)}
    state = tx.init(params)
    for _ in range(3):
        grads = {"a": jnp.full(300, 0.5, HALF)}
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    assert params["a"].dtype == HALF
    assert float(jnp.max(params["a"])) < 1.0


def test_a_jitted_link_that_donates_a_state_of_optax_and_makes_it_wider() -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        nu = state.nu["a"].astype(jnp.float32) * 0.5 + 0.5
        return updates, optax.ScaleByRmsState(nu={"a": nu})  # type: ignore[no-untyped-call]

    link = optax.GradientTransformation(
        lambda params: optax.ScaleByRmsState(nu={"a": jnp.zeros_like(params["a"])}),  # type: ignore[no-untyped-call]
        jax.jit(update, donate_argnums=(1,)),
    )
    tx, params = optax.chain(link, optax.scale_by_adam()), {"a": jnp.ones(300, HALF)}
    state = tx.init(params)
    for _ in range(2):
        _, state = tx.update(params, state, params)
    assert state[0].nu["a"].dtype == HALF
    assert state[0].nu["a"].tolist() == [0.75] * 300


def test_gradients_that_are_deleted_before_the_params_move() -> None:
    tx, params = optax.sgd(0.01), {"a": jnp.ones(300, HALF)}
    grads = {"a": jnp.full(300, 0.5, HALF)}
    updates, _ = tx.update(grads, tx.init(params), params)
    grads["a"].delete()
    new = optax.apply_updates(params, updates)["a"].astype(jnp.float32)
    assert 0.99 < float(jnp.mean(new)) < 1.0


@jax.tree_util.register_pytree_node_class
class Agent:
    """Params of reinforcement learning: they start and learn by methods of their own."""

    def __init__(self, weights: Any, bias: Any) -> None:
        self.weights, self.bias = weights, bias

    def init(self) -> None: ...

    def update(self) -> None: ...

    def tree_flatten(self) -> Any:
        return (self.weights, self.bias), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Any) -> Any:
        return cls(*leaves)


class State(collections.UserDict):  # type: ignore[type-arg]
    """A mapping that makes its inner mappings when they are asked for, as flax's states do."""

    def __getitem__(self, key: str) -> Any:
        item = self.data[key]
        return State(item) if isinstance(item, dict) else item


jax.tree_util.register_pytree_node(
    State,
    lambda node: (tuple(node[key] for key in sorted(node)), tuple(sorted(node))),
    lambda keys, items: State(zip(keys, (getattr(item, "data", item) for item in items))),
)

TREES: dict[str, Callable[[Any, Any], Any]] = {
    "agent": Agent,
    "state": lambda a, b: State({"x": {"weights": a}, "y": {"bias": b}}),
}


@pytest.mark.parametrize("dtype", [jnp.float32, HALF])
@pytest.mark.parametrize("kind", TREES)
def test_masks_and_labels_in_any_class(kind: str, dtype: Any) -> None:
    build = TREES[kind]
    params = build(jnp.ones((2, 2), dtype), jnp.ones(2, dtype))
    mask, labels = build(True, False), build("x", "y")
    by_label = {"x": optax.scale(2.0), "y": optax.scale(1.0)}
    for tx in (
        optax.chain(optax.scale_by_adam(), optax.masked(optax.scale(2.0), mask)),
        optax.chain(optax.scale_by_adam(), partition(by_label, labels)),
        optax.chain(optax.scale_by_adam(), partition(by_label, lambda _: labels)),
    ):
        updates, _ = tx.update(params, tx.init(params), params)
        weights, bias = jax.tree_util.tree_leaves(updates)
        np.testing.assert_allclose(np.asarray(weights, np.float64), 2.0, rtol=0.01)
        np.testing.assert_allclose(np.asarray(bias, np.float64), 1.0, rtol=0.01)


@pytest.mark.parametrize("dtype", [jnp.float32, HALF])
def test_a_mask_that_is_a_hyperparameter(dtype: Any) -> None:
    """inject_hyperparams takes a function for a schedule, and keeps what it returns."""
    if Version(optax.__version__) < Version("0.2.5"):
        pytest.skip("stock makes an array of what a schedule returns, and raises")
    params = {"a": jnp.ones(3, dtype), "b": jnp.ones(2, dtype)}
    mask = {"a": True, "b": False}
    tx: Any = optax.inject_hyperparams(optax.adamw)(0.01, weight_decay=0.5, mask=lambda _: mask)
    state = tx.init(params)
    assert jax.tree_util.tree_leaves(state.hyperparams["mask"]) == [True, False]
    for _ in range(2):
        updates, state = tx.update(params, state, params)
    np.testing.assert_allclose(np.asarray(updates["a"], np.float64), -0.015, rtol=0.01)
    np.testing.assert_allclose(np.asarray(updates["b"], np.float64), -0.01, rtol=0.01)


def test_an_instance_does_not_bind_new() -> None:
    """Some classes copy themselves so, with other fields."""
    tx = optax.sgd(0.1)
    assert tx.__new__(type(tx), tx.init, tx.update) == tx


@pytest.mark.parametrize("dtype", [jnp.float32, HALF])
@pytest.mark.parametrize("name", ["step", "function", "update", "stock", "inner_state"])
def test_an_extra_argument_of_any_name(name: str, dtype: Any) -> None:
    if not hasattr(optax, "GradientTransformationExtraArgs"):
        assert not IS_NEWEST
        pytest.skip("extra arguments came with optax 0.1.5")

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> Any:
        del params
        return jax.tree_util.tree_map(lambda u: u * extra_args[name], updates), state

    link = optax.GradientTransformationExtraArgs(lambda _: (), update)
    params = {"a": jnp.ones(3, dtype)}
    around = [optax.chain(optax.trace(0.5), link), optax.apply_if_finite(link, 3)]
    if IS_NEWEST:  # MultiSteps of some old releases loses extra arguments.
        around.append(optax.MultiSteps(link, 1).gradient_transformation())
    for tx in around:
        updates, _ = tx.update(params, tx.init(params), params, **{name: 2})
        assert updates["a"].tolist() == [2.0] * 3


@jax.tree_util.register_pytree_node_class
class Model(Agent):
    """Params that can be called, as the modules of equinox."""

    def __call__(self, inputs: Any) -> Any:
        return inputs @ self.weights + self.bias


@pytest.mark.parametrize("dtype", [jnp.float32, HALF])
def test_a_gradient_that_can_be_called_is_no_function(dtype: Any) -> None:
    if not hasattr(optax, "scale_by_zoom_linesearch"):
        assert not IS_NEWEST
        pytest.skip("lbfgs came with optax 0.2.3")
    inputs, tx = jnp.eye(2, dtype=dtype), optax.lbfgs()

    def loss(model: Any) -> Any:
        assert model.weights.dtype == dtype
        return jnp.mean((model(inputs) - 1) ** 2)

    params = Model(jnp.zeros((2, 2), dtype), jnp.zeros(2, dtype))
    state = tx.init(params)
    for _ in range(3):
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params, value=value, grad=grads, value_fn=loss)
        params = optax.apply_updates(params, updates)
    assert float(loss(params)) < 0.1


@pytest.mark.parametrize("place", ["chain", "masked"])
def test_a_proxy_around_a_transformation(place: str) -> None:
    tx = PLACES[place](wrapt.ObjectProxy(optax.trace(0.5)))
    params = {"a": jnp.ones(3, HALF)}
    updates, _ = tx.update(params, tx.init(params), params)
    assert updates["a"].tolist() == [1.0] * 3


class Defaults(collections.defaultdict):  # type: ignore[type-arg]
    """A mapping of the user's in a function of the user's."""


def test_a_function_of_the_user_with_the_name_of_optax_is_no_part_of_optax() -> None:
    known = Defaults(lambda: HALF)

    def masked(tx: Any) -> Any:
        def mask(tree: Any) -> Any:
            return {name: leaf.dtype == known[name] for name, leaf in tree.items()}

        mask.__qualname__ = "masked.<locals>.mask"  # As of a function at the top of a module.
        return optax.masked(tx, mask)

    tx = optax.chain(optax.scale_by_adam(), masked(optax.scale(-2.0)))
    params = {"a": jnp.ones(3, HALF), "b": jnp.ones(3, jnp.float32)}
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(np.asarray(updates["a"], np.float64), -2.0, rtol=0.01)
    np.testing.assert_allclose(np.asarray(updates["b"], np.float64), 1.0, rtol=0.01)


def test_an_estimator_of_the_users_sees_the_users_dtypes() -> None:
    if not hasattr(getattr(optax, "contrib", None), "sophia"):
        assert not IS_NEWEST
        pytest.skip("sophia came with optax 0.2.0")
    seen = set()

    def update(updates: Any, state: Any, params: Any = None, **_: Any) -> Any:
        del updates
        seen.add(params["a"].dtype)
        return params, state

    estimator = optax.GradientTransformationExtraArgs(lambda _: (), update)
    tx: Any = optax.contrib.sophia(0.01, hessian_diagonal_fn=estimator)
    params = {"a": jnp.ones(3, HALF)}
    tx.update(params, tx.init(params), params, obj_fn=lambda p: jnp.sum(p["a"]))
    assert seen == {jnp.dtype(HALF)}


class Object:
    """A transformation that is no tuple."""

    def __init__(self, tx: Any) -> None:
        self.init, self.update = tx.init, tx.update


class Started(Base):  # type: ignore[misc]
    """A subclass with an init of its own."""

    def init(self, params: Any) -> Any:
        state = super().init(params)
        return jax.tree_util.tree_map(lambda leaf: leaf + jnp.asarray(1, leaf.dtype), state)


@pytest.mark.parametrize("dtype", [jnp.float32, HALF])
@pytest.mark.parametrize("kind", ["subclass", "init", "object"])
def test_mechanize_around_a_class_of_the_users(kind: str, dtype: Any) -> None:
    mechanize: Any = getattr(getattr(optax, "contrib", None), "mechanize", None)
    if mechanize is None:
        assert not IS_NEWEST
        pytest.skip("mechanize came with optax 0.1.7")
    user, same = {
        "subclass": (HalvedWithExtraArgs(*optax.sgd(1.0)), optax.sgd(0.5)),
        "init": (
            Started(*optax.trace(0.5)),
            optax.GradientTransformation(
                lambda params: optax.TraceState(
                    trace=jax.tree_util.tree_map(jnp.ones_like, params)
                ),
                optax.trace(0.5).update,
            ),
        ),
        "object": (Object(optax.sgd(0.5)), optax.sgd(0.5)),
    }[kind]
    ends = []
    for base in (user, same):
        tx, params = mechanize(base, s_init=0.1), {"a": jnp.ones(3, dtype)}
        state = tx.init(params)
        for _ in range(8):
            updates, state = tx.update(params, state, params)
            params = optax.apply_updates(params, updates)
        ends.append(np.asarray(params["a"], np.float64))
    assert max(ends[0]) != 1.0
    np.testing.assert_array_equal(*ends)
