"""Values after many steps with steady gradients in half precision, as ``check`` shows them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import optax_dtypefix
from optax_dtypefix._diagnosis.stalls import find_stalls
from optax_dtypefix._diagnosis.steady import Problem
from support.thorough import one_of
from support.trees import tree_map

by_half = pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))


def shapes(dtype: Any) -> Any:
    return {"w": jax.ShapeDtypeStruct((8, 12), dtype), "b": jax.ShapeDtypeStruct((8,), dtype)}


def stalls(tx: Any, params: Any, **extra_args: Any) -> tuple[list[Any], list[str]]:
    """Return what is wrong, and the notes."""
    notes: dict[str, None] = {}
    return [*find_stalls(tx, params, extra_args, notes)], [*notes]


def stateful(init: Any, update: Any) -> Any:
    """Build a transformation from ``init()`` and ``update(leaf, state) -> factor, state``."""

    def update_fn(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        factor, state = update(grads, state)
        return tree_map(lambda g: (g * factor).astype(g.dtype), grads), state

    return optax.GradientTransformation(init, update_fn)


@by_half
def test_patched_optimizers_are_right(dtype: Any) -> None:
    for tx in (
        optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.9)),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
        optax.MultiSteps(optax.inject_hyperparams(optax.adam)(1e-3), 4),
    ):
        assert stalls(tx, shapes(dtype)) == ([], [])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_moment_that_stalls_is_found(dtype: Any) -> None:
    """It stalls where a thousandth of a square is less than half a unit of bfloat16."""

    def root(grads: Any, state: Any) -> Any:
        square = jnp.mean(jnp.square(grads["w"].astype(jnp.float32)))
        mean = state["mean"] + (0.001 * (square - state["mean"])).astype(state["mean"].dtype)
        return -0.1 / jnp.sqrt(1e-6 + mean.astype(jnp.float32)), {"mean": mean}

    def init(params: Any) -> Any:
        return {"mean": jnp.zeros((1,), params["w"].dtype)}

    found, notes = stalls(stateful(init, root), shapes(dtype))
    assert notes == []
    assert {problem.kind for problem in found} == ({"update"} if dtype == jnp.bfloat16 else set())
    text = "times too large at step 2000 (updates['b']), after steady gradients"
    assert all(problem.message.endswith(text) for problem in found[:1])


def test_updates_that_are_off_or_zero_are_found() -> None:
    def found_for(factor: Any) -> str:
        tx = stateful(lambda _: (), lambda g, state: (factor(g["w"].dtype), state))
        (problem,), _ = stalls(tx, {"w": jax.ShapeDtypeStruct((8, 12), jnp.float16)})
        return f"{problem.kind}: {problem.message}"

    off = found_for(lambda dtype: -0.1 if dtype == jnp.float32 else -0.13)
    assert off.startswith("update: updates 1.30 times too large")
    # 1 - 0.9999 is 0 in float16, where 0.9999 is 1.
    zero = found_for(lambda dtype: jnp.asarray(0.9999, dtype) - 1)
    assert zero.startswith("stalls: zero instead of ")


@pytest.mark.parametrize("first", [1, 150])
def test_numbers_that_are_not_finite_are_found(first: int) -> None:
    """Params that are NaN would spoil the updates of float32 too."""

    def update(grads: Any, count: Any, params: Any = None) -> Any:
        eps = jnp.where(count + 1 >= first, jnp.asarray(1e-9, grads["w"].dtype), 1)
        return tree_map(lambda g, p: eps / eps * 0.1 * g + 0 * p, grads, params), count + 1

    tx = optax.GradientTransformation(lambda _: jnp.zeros((), jnp.int32), update)
    found, notes = stalls(tx, shapes(jnp.float16))
    step = 100 if first == 1 else 200
    assert [(p.kind, p.where) for p in found] == [("not finite", f"updates['{n}']") for n in "bw"]
    assert found[0].message == f"nan at step {step} (updates['b']), after steady gradients"
    assert notes == []


def test_what_grows_beyond_float16_is_not_compared() -> None:
    tx = stateful(lambda _: (), lambda _, state: (jnp.float32(1e6), state))
    assert stalls(tx, {"w": jax.ShapeDtypeStruct((8, 12), jnp.float16)}) == ([], [])


@pytest.mark.parametrize(
    "case",
    one_of(
        2,
        [
            (optax.piecewise_constant_schedule(0.01, {1000: 0.0}), 1000),
            (optax.linear_schedule(0.01, 0.0, 1000), 1000),  # It ends near 0.
            (lambda count: jnp.where(count < 1500, 0.01, 0.0), 1500),
            (lambda count: 0.01 / (1.0 + 0.01 * count), 2000),
        ],
        1,
    ),
)
def test_a_moment_that_stalls_is_found_where_a_schedule_ends(case: tuple[Any, int]) -> None:
    """A fault of stock: trace(0.99) in bfloat16 is too small."""
    schedule, steps = case
    tx = optax.sgd(schedule, momentum=0.99)
    with optax_dtypefix.disabled("bfloat16_moments"):
        found, notes = stalls(optax.sgd(schedule, momentum=0.99), shapes(jnp.bfloat16))
    wrong = [problem.message for problem in found if problem.kind == "update"]
    assert len(wrong) == 2
    assert all(f"at step {steps} (" in message for message in wrong)
    note = f"no updates after step {steps}: compared up to there"
    assert notes == ([] if steps == 2000 else [note])
    assert stalls(tx, shapes(jnp.bfloat16))[0] == []


@by_half
def test_params_that_do_not_move_are_found(dtype: Any) -> None:
    tx = optax.sgd(1e-4)
    with optax_dtypefix.disabled("stochastic_rounding"):
        found, _ = stalls(tx, shapes(dtype))
        assert stalls(optax.sgd(0.1), shapes(dtype)) == ([], [])
    assert [(p.kind, p.where) for p in found] == [("params", f"params['{n}']") for n in "bw"]
    text = "does not move params at step 2000 (params['w']), after steady gradients"
    assert found[1].message.endswith(text)
    assert stalls(tx, shapes(dtype)) == ([], [])


def test_a_number_in_steps_that_repeat_stays_unless_something_counts() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        """Give the same update in each step. Others may find a way by chance."""
        del params
        return tree_map(lambda grad: -1e-3 * jnp.sign(grad), grads), state

    tx = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    number = {"s": jax.ShapeDtypeStruct((), jnp.bfloat16)}
    assert [problem.kind for problem in stalls(tx, number)[0]] == ["params"]
    counted = optax.chain(tx, optax.scale_by_schedule(lambda _: 1))
    assert stalls(counted, number) == ([], [])


def test_a_state_that_no_loop_takes_is_a_note() -> None:
    def grow(grads: Any, state: Any) -> Any:
        del grads
        return -0.1, (*state, jnp.zeros(()))

    found, (note,) = stalls(stateful(lambda _: (), grow), shapes(jnp.bfloat16))
    assert found == []
    assert note.startswith("no run with steady gradients: ")


def test_random_updates_are_not_compared() -> None:
    def update(grads: Any, key: Any, params: Any = None) -> Any:
        del params
        key, noise = jax.random.split(key)
        return tree_map(lambda g: g + jax.random.normal(noise, g.shape, g.dtype), grads), key

    tx = optax.GradientTransformation(lambda _: jax.random.PRNGKey(0), update)
    note = "updates are random: only checked for numbers that are not finite"
    assert stalls(tx, shapes(jnp.bfloat16)) == ([], [note])


def test_a_loss_is_1_and_its_gradient_given() -> None:
    def update(grads: Any, state: Any, params: Any = None, **given: Any) -> Any:
        del params
        assert given["loss"].dtype == given["grad"]["w"].dtype
        factor = jnp.where(given["loss"] == 1, -0.1, jnp.nan)
        return tree_map(
            lambda g, same: (factor * (g + same)).astype(g.dtype), grads, given["grad"]
        ), (state)

    tx = optax.GradientTransformation(lambda _: (), update)
    loss = jax.ShapeDtypeStruct((), jnp.bfloat16)
    params = shapes(jnp.bfloat16)
    assert stalls(tx, params, loss=loss, grad=params, obj_fn=len) == ([], [])


def shrunk(tx: Any, params: Any) -> Any:
    return tree_map(jnp.shape, Problem(tx, params, params, {}).params)


def test_large_shapes_are_shrunk_as_far_as_the_state_stays_alike() -> None:
    dimensions = ((8192, 28672), (8192, 8192), (8192,), (8192, 2))
    params = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in dimensions]
    sizes = {
        64: [(64, 65), (64, 64), (64,), (64, 2)],
        128: [(128, 129), (128, 128), (128,), (128, 2)],
    }
    assert shrunk(optax.sgd(0.1), params) == sizes[64]
    assert shrunk(optax.adafactor(1e-3), params) == sizes[128]


def test_what_is_too_large_is_a_note() -> None:
    def init(params: Any) -> Any:
        return params if params["w"].shape == (1024, 1024) else ()

    tx = stateful(init, lambda _, state: (-0.1, state))
    found, (note,) = stalls(tx, {"w": jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)})
    assert found == []
    assert note == "no run with steady gradients: ValueError: the shapes are too large"


def test_the_users_debugging_modes_do_not_stop_the_search_for_nan() -> None:
    with jax.debug_nans(True):
        tx = stateful(lambda _: (), lambda g, state: (g["b"][0] * 0 / 0, state))
        # NaN in float32 too: no violation.
        assert stalls(tx, {"b": jax.ShapeDtypeStruct((2,), jnp.bfloat16)}) == ([], [])
        assert jax.config.jax_debug_nans
