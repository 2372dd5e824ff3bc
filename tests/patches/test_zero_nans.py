from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support.nodes import Converting
from support.patch_cases import FuzzCase, Program, programs
from support.thorough import one_of
from support.trees import leaves, tree_map, tree_of


def zeroing(inner: Any) -> Any:
    return optax.chain(optax.zero_nans(), inner)


FUZZ = FuzzCase(
    lambda draw: optax.MultiSteps(zeroing(optax.adam(draw.rate())), draw.of(1, 2)),
    any_gradients=True,
)
PROGRAMS = {
    **{
        name: case._replace(same="bits")
        for name, case in programs("multi_steps").items()
        if case.same == "program"
    },
    "inside": Program(
        lambda: optax.MultiSteps(zeroing(optax.adam(1e-2)), 2),
        releases="!=0.1.8,!=0.1.9",
        same="bits",
    ),
}

BAD = {"nan": np.nan, "inf": np.inf}


def constant(value: float) -> dict[str, Any]:
    return {"w": jnp.full((3,), value, jnp.float32), "b": jnp.full((2,), 1.0, jnp.float32)}


def run(tx: Any, gradients: list[float]) -> tuple[list[Any], Any]:
    """Run a step for each gradient of leaf ``w``. Leaf ``b`` always has gradient one."""
    params = constant(0.0)
    state, emitted = tx.init(params), []
    step = jax.jit(tx.update)
    for value in gradients:
        updates, state = step(constant(value), state, params)
        emitted.append(updates)
    return emitted, state


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("when", [0, 1])
@pytest.mark.parametrize("mean", one_of(2, [True, False]))
def test_a_bad_gradient_does_not_reach_the_next_window(bad: float, when: int, mean: bool) -> None:
    inner = optax.chain(optax.zero_nans(), optax.sgd(1.0))
    tx = optax.MultiSteps(inner, 2, use_grad_mean=mean)
    window = [2.0, 4.0]
    poisoned = [bad if i == when else g for i, g in enumerate(window)]
    emitted, state = run(tx, poisoned + window + window)
    expected = -3.0 if mean else -6.0
    for index in (3, 5):
        np.testing.assert_array_equal(emitted[index]["w"], expected)
    assert all(bool((leaf == 0).all()) for leaf in leaves(state.acc_grads))


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("build", [lambda: optax.sgd(1.0), lambda: optax.adam(0.1)])
def test_a_step_inside_the_window_emits_exact_zeros(bad: float, build: Any) -> None:
    emitted, _ = run(optax.MultiSteps(build(), 3), [bad, 1.0])
    for updates in emitted:
        for leaf in leaves(updates):
            np.testing.assert_array_equal(leaf, 0.0)


def test_a_leaf_without_nan_keeps_its_updates() -> None:
    inner = optax.chain(optax.zero_nans(), optax.sgd(1.0))
    emitted, _ = run(optax.MultiSteps(inner, 2), [np.nan, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal([emitted[1]["b"][0], emitted[3]["b"][0]], -1.0)


def test_adam_trains_on_after_a_nan() -> None:
    """Stock emits zeros forever after one bad batch, in a run as in upstream issue 828."""
    tx = optax.MultiSteps(optax.chain(optax.zero_nans(), optax.adam(0.1)), 2)
    emitted, _ = run(tx, [1.0, 1.0, np.nan, 1.0, *[1.0] * 40])
    # For a constant gradient, Adam's update tends to the learning rate.
    np.testing.assert_allclose(emitted[-1]["w"], -0.1, rtol=0.05)


def test_the_inner_state_is_not_averaged_with_nan() -> None:
    """The state has bools, and a number that starts at inf, as in reduce_on_plateau."""

    def init(params: Any) -> Any:
        del params
        return {"seen": jnp.asarray(False), "best": jnp.asarray(jnp.inf, jnp.float32)}

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        best = jnp.minimum(state["best"], leaves(grads)[0].max())
        return grads, {"seen": ~state["seen"], "best": best}

    tx = optax.MultiSteps(optax.GradientTransformation(init, update), 2)
    params = {"w": jnp.full(3, 5.0)}
    state = tx.init(params)
    for best, seen in ((np.inf, False), (5.0, True), (5.0, True), (5.0, False)):
        _, state = tx.update(params, state, params)
        assert float(state.inner_opt_state["best"]) == best
        assert bool(state.inner_opt_state["seen"]) is seen


def test_without_zero_nans_a_nan_still_shows() -> None:
    """The patch only fixes updates that should be zero. A nan that is emitted still shows."""
    emitted, _ = run(optax.MultiSteps(optax.sgd(1.0), 2), [np.nan, 1.0])
    assert np.isnan(emitted[1]["w"]).all()


@pytest.mark.parametrize("dtype", one_of(3, [jnp.bfloat16, jnp.float16, jnp.complex64]))
def test_other_dtypes_recover_from_a_nan(dtype: Any) -> None:
    tx = optax.MultiSteps(optax.sgd(1.0), 2)
    params = tree_of(dtype)
    ones = tree_map(jnp.ones_like, params)
    state = tx.init(params)
    for grads in (tree_map(lambda p: p * jnp.nan, params), ones, ones, ones):
        updates, state = tx.update(tree_map(lambda g: g.astype(dtype), grads), state, params)
    np.testing.assert_array_equal(np.asarray(updates["w"]).astype(np.complex64), -1.0)


def test_the_state_may_have_user_defined_nodes() -> None:
    tx = optax.MultiSteps(optax.trace(0.5), 2)
    params = Converting(jnp.ones(3))
    state = tx.init(params)
    for grad in (np.nan, 1.0, 1.0, 1.0):
        updates, state = jax.jit(tx.update)(Converting(jnp.full(3, grad)), state, params)
    assert isinstance(state.inner_opt_state.trace, Converting)
    assert isinstance(updates, Converting)
