from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import (
    example,
    given,
    settings,
    strategies as st,
)
from packaging.version import Version

import optax_dtypefix
from optax_dtypefix import check, check_values
from optax_dtypefix._diagnosis.shrink import shrunk_shapes
from support.nodes import Converting
from support.trees import tree_map

HALF = (jnp.bfloat16, jnp.float16)


def shapes(dtype: Any) -> Any:
    return {"w": jax.ShapeDtypeStruct((8, 12), dtype), "b": jax.ShapeDtypeStruct((8,), dtype)}


def stateful(init: Any, update: Any) -> Any:
    """Build a transformation from ``init()`` and ``update(leaf, state) -> factor, state``."""

    def update_fn(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        factor, state = update(grads, state)
        return tree_map(lambda g: (g * factor).astype(g.dtype), grads), state

    return optax.GradientTransformation(init, update_fn)


def kinds(found: Any) -> set[str]:
    return {problem.kind for problem in found}


@pytest.mark.parametrize("dtype", [jnp.float32, *HALF])
def test_plain_optimizers_are_ok(dtype: Any) -> None:
    for tx in (optax.sgd(0.1, momentum=0.9), optax.chain(optax.clip(1.0), optax.sgd(0.1))):
        found = check_values(tx, shapes(dtype), steps=24)
        assert found.ok, found
        assert str(found) == "values: ok"
        found.raise_if_broken()


def test_a_sum_that_stalls_is_found() -> None:
    """bfloat16 has 8 bits: from 256 on, adding 1 changes nothing."""
    tx = stateful(
        lambda _: {"sum": jnp.zeros((), jnp.bfloat16)},
        lambda _, state: (-0.1, {"sum": state["sum"] + jnp.bfloat16(1)}),
    )
    (problem,) = check_values(tx, shapes(jnp.bfloat16))
    assert (problem.kind, problem.where) == ("stalls", "state['sum']")
    # At step n the sum is 256 and not n: more than 1 % off from n = 259 on.
    assert problem.step == math.floor(256 / 0.99) + 1
    assert "256 instead of 259" in str(problem)
    assert check_values(tx, shapes(jnp.bfloat16), steps=200).ok


def test_a_sum_in_float32_is_no_problem() -> None:
    tx = stateful(
        lambda _: {"sum": jnp.zeros((), jnp.float32)},
        lambda _, state: (-0.1, {"sum": state["sum"] + 1}),
    )
    assert check_values(tx, shapes(jnp.bfloat16)).ok


def test_an_epsilon_that_underflows_is_found() -> None:
    tx = stateful(
        lambda _: (),
        lambda g, state: (1 / (jnp.abs(g["b"]).max() + jnp.asarray(1e-9, g["b"].dtype)), state),
    )
    found = check_values(tx, shapes(jnp.float16), steps=24)
    assert kinds(found) == {"not finite"}
    assert "nan at step 1 (updates['b']), after zero gradients" in str(found)
    assert check_values(tx, shapes(jnp.bfloat16), steps=24).ok


def test_a_norm_that_overflows_is_found() -> None:
    def factor(grads: Any, state: Any) -> Any:
        squares = sum(jnp.sum(jnp.square(g)) for g in jax.tree_util.tree_leaves(grads))
        return -1 / (1 + jnp.sqrt(squares)), state

    tx = stateful(lambda _: (), factor)
    found = check_values(tx, shapes(jnp.float16), steps=24)
    assert kinds(found) == {"stalls"}
    assert all(problem.gradients == "gradients of about 64" for problem in found)
    assert check_values(tx, shapes(jnp.bfloat16), steps=24).ok


def test_a_hyperparameter_that_is_rounded_away_is_found() -> None:
    """1 - 0.999 is 0 in bfloat16, where 0.999 is 1, and 0.001 in float32."""
    tx = stateful(
        lambda _: (),
        lambda g, state: (1 - jnp.asarray(0.999, g["w"].dtype), state),
    )
    found = check_values(tx, shapes(jnp.bfloat16), steps=24)
    assert kinds(found) == {"stalls"}
    assert "zero instead of" in str(found)
    assert check_values(tx, shapes(jnp.float32), steps=24).ok


def test_an_update_that_is_off_is_found() -> None:
    tx = stateful(
        lambda _: (), lambda g, state: (-0.1 if g["w"].dtype == jnp.float32 else -0.13, state)
    )
    found = check_values(tx, shapes(jnp.bfloat16), steps=24)
    assert kinds(found) == {"update"}
    assert "off by 30%" in str(found)
    with pytest.raises(optax_dtypefix.OptaxDtypeFixError, match="off by 30%"):
        found.raise_if_broken()


def test_rounding_of_stored_moments_is_no_problem() -> None:
    """adam in bfloat16 keeps bfloat16 moments: that is the user's choice of memory."""
    for tx in (optax.adam(1e-3), optax.lion(1e-3) if hasattr(optax, "lion") else optax.yogi(1e-3)):
        found = check_values(tx, shapes(jnp.bfloat16))
        assert found.ok, found


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_moment_that_stalls_is_found(dtype: Any) -> None:
    """It stalls where a thousandth of a square is less than half a unit of bfloat16."""

    def root(grads: Any, state: Any) -> Any:
        square = jnp.mean(jnp.square(grads["w"].astype(jnp.float32)))
        mean = state["mean"] + (0.001 * (square - state["mean"])).astype(dtype)
        return -0.1 / jnp.sqrt(1e-6 + mean.astype(jnp.float32)), {"mean": mean}

    tx = stateful(lambda _: {"mean": jnp.zeros((1,), dtype)}, root)
    found = check_values(tx, shapes(dtype))
    if dtype == jnp.float32:
        assert found.ok, found
        return
    assert {(p.kind, p.step, p.gradients) for p in found} == {
        ("update", 2000, "after steady gradients")
    }
    assert "times too large at step 2000 (updates['b']), after steady gradients" in str(found)
    assert check_values(tx, shapes(dtype), steps=300).ok  # Without that run.


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (optax.piecewise_constant_schedule(0.01, {1000: 0.0}), 1000),
        (optax.linear_schedule(0.01, 0.0, 1000), 1000),  # It ends near 0.
        (lambda count: jnp.where(count < 1500, 0.01, 0.0), 1500),
        (lambda count: 0.01 / (1.0 + 0.01 * count), 2000),
    ],
)
def test_a_moment_that_stalls_is_found_where_a_schedule_ends(schedule: Any, steps: int) -> None:
    """A fault of stock: trace(0.99) in bfloat16 is too small."""
    tx = optax.sgd(schedule, momentum=0.99)
    with optax_dtypefix.disabled("bfloat16_moments"):
        stock = optax.sgd(schedule, momentum=0.99)
        found = check_values(stock, shapes(jnp.bfloat16))
    wrong = {(p.kind, p.step) for p in found if p.kind == "update"}
    assert wrong == {("update", steps)}
    note = f"no updates after step {steps}: compared up to there"
    assert found.notes == (() if steps == 2000 else (note,))
    assert check_values(tx, shapes(jnp.bfloat16)).ok


@pytest.mark.parametrize("dtype", HALF)
def test_params_that_do_not_move_are_found(dtype: Any) -> None:
    tx = optax.sgd(1e-4)
    with optax_dtypefix.disabled("stochastic_rounding"):
        found = check_values(tx, shapes(dtype))
        assert check_values(optax.sgd(0.1), shapes(dtype)).ok
    assert [(p.kind, p.where) for p in found] == [("params", f"params['{n}']") for n in "bw"]
    text = "does not move params at step 2000 (params['w']), after steady gradients"
    assert text in str(found)
    found = check_values(tx, shapes(dtype))
    assert found.ok, found


def test_a_number_in_steps_that_repeat_stays_unless_something_counts() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        """Give the same update in each step. Others may find a way by chance."""
        del params
        return jax.tree_util.tree_map(lambda grad: -1e-3 * jnp.sign(grad), grads), state

    tx = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    number = jax.ShapeDtypeStruct((), jnp.bfloat16)
    assert kinds(check_values(tx, {"s": number})) == {"params"}
    counted = optax.chain(tx, optax.scale_by_schedule(lambda _: 1))
    assert check_values(counted, {"s": number}).ok
    assert check_values(tx, {"s": jax.ShapeDtypeStruct((), jnp.float32)}).ok


def test_the_rounding_of_a_hyperparameter_is_no_problem() -> None:
    """float16 has no 1e-8. A patch uses what was given, where the state holds its rounding."""

    def same(grads: Any, state: Any) -> Any:
        del grads
        return -0.1, state

    def init(params: Any) -> Any:
        return {"eps": jnp.asarray(1e-8, params["w"].dtype)}

    found = check_values(stateful(init, same), shapes(jnp.float16))
    assert found.ok, found


def test_a_state_that_no_loop_takes_is_a_note() -> None:
    def grow(grads: Any, state: Any) -> Any:
        del grads
        return -0.1, (*state, jnp.zeros(()))

    found = check_values(stateful(lambda _: (), grow), shapes(jnp.bfloat16))
    assert found.ok
    (note,) = found.notes
    assert note.startswith("no run with steady gradients: ")


def test_float32_is_compared_with_float64() -> None:
    def factor(grads: Any, state: Any) -> Any:
        del grads
        count = state["count"] + 1
        return -(count - (count - 1e-8)), {"count": count}

    start = {"count": jnp.zeros((), jnp.float32)}
    tx = stateful(lambda params: tree_map(lambda c: c.astype(params["w"].dtype), start), factor)
    found = check_values(tx, shapes(jnp.float32), steps=24)
    assert kinds(found) == {"stalls"}
    assert jax.config.jax_enable_x64 is False


def accumulating(window: int, *, forgets: bool, guards: bool) -> Any:
    """Sum gradients. 0 * nan is nan: a weighted sum never forgets NaN, and a select does."""

    def init(params: Any) -> Any:
        return {"sum": tree_map(jnp.zeros_like, params), "count": jnp.zeros((), jnp.int32)}

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        total = tree_map(jnp.add, state["sum"], grads)
        emit = state["count"] % window == window - 1

        def emitted(leaf: Any) -> Any:
            return emit * (-0.1 * (jnp.nan_to_num(leaf) if guards else leaf))

        def kept(leaf: Any) -> Any:
            return jnp.where(emit, 0, leaf) if forgets else (1 - emit) * leaf

        new = {"sum": tree_map(kept, total), "count": state["count"] + 1}
        return tree_map(emitted, total), new

    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize("window", [2, 16])
def test_a_guard_against_nan_that_never_ends_is_found(window: int) -> None:
    tx = accumulating(window, forgets=False, guards=True)
    found = check_values(tx, shapes(jnp.float32))
    assert {(p.kind, p.step, p.gradients) for p in found} == {
        ("stalls", 2 * window, "after NaN gradients")
    }
    assert check_values(accumulating(window, forgets=True, guards=True), shapes(jnp.float32)).ok


@pytest.mark.parametrize("forgets", [False, True])
def test_nan_updates_of_nan_gradients_are_no_problem(forgets: bool) -> None:
    """adam itself gives NaN from then on."""
    tx = accumulating(2, forgets=forgets, guards=False)
    assert check_values(tx, shapes(jnp.float32), steps=24).ok


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of optax 0.1.2.
@pytest.mark.parametrize("first_rate", [0.0, 1e-5])
@pytest.mark.parametrize(("guard", "window"), [(optax.identity, 4), (optax.zero_nans, 16)])
def test_the_rate_does_not_decide_what_nan_does(guard: Any, window: int, first_rate: float) -> None:
    rate = optax.warmup_cosine_decay_schedule(first_rate, 1e-3, 10, 100)
    tx = optax.MultiSteps(optax.chain(guard(), optax.adam(rate)), window)
    found = check_values(tx, shapes(jnp.float32))
    assert found.ok, found


def test_random_updates_are_not_compared() -> None:
    def update(grads: Any, key: Any, params: Any = None) -> Any:
        del params
        key, noise = jax.random.split(key)
        return tree_map(lambda g: g + jax.random.normal(noise, g.shape, g.dtype), grads), key

    tx = optax.GradientTransformation(lambda _: jax.random.PRNGKey(0), update)
    found = check_values(tx, shapes(jnp.bfloat16), steps=24)
    assert found.ok
    assert found.notes == ("updates are random: only checked for numbers that are not finite",)
    assert "note: updates are random" in str(found)


def test_an_exception_is_a_problem_with_its_cause() -> None:
    def update(*_: Any) -> Any:
        raise KeyError("lost")

    found = check_values(
        optax.GradientTransformation(lambda _: (), update), shapes(jnp.float32), steps=24
    )
    assert kinds(found) == {"error"}
    assert isinstance(found.error, KeyError)


@pytest.mark.parametrize("function", [check, check_values])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (optax.adam, shapes(jnp.float32)),
            r"Did you mean check\w*\(optax\.adam\(\.\.\.\), params\)",
        ),
        ((optax.MultiSteps, shapes(jnp.float32)), r"Did you mean check\w*\(optax\.MultiSteps\("),
        ((shapes(jnp.float32), optax.sgd(0.1)), "arguments are swapped"),
        ((optax.sgd(0.1), None), "params is None"),
        ((optax.sgd(0.1), {}), "params has no arrays"),
        (("adam", shapes(jnp.float32)), "'adam' is not a gradient transformation"),
    ],
)
def test_wrong_arguments_get_advice(function: Any, arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        function(*arguments)


@pytest.mark.parametrize("function", [check, check_values])
def test_missing_extra_arguments_are_named(function: Any) -> None:
    def update(grads: Any, state: Any, params: Any = None, *, value: Any, loss: Any) -> Any:
        del params, value, loss
        return grads, state

    tx = optax.GradientTransformation(lambda _: (), update)
    found = function(tx, shapes(jnp.float32))
    call = f"{function.__name__}(tx, params, value=..., loss=...)"
    assert f"The update needs value and loss: call {call}." in str(found)


def test_the_loss_falls_slowly() -> None:
    seen = []

    def update(grads: Any, state: Any, params: Any = None, *, value: Any) -> Any:
        del params
        seen.append(value)
        return tree_map(lambda g: g * value, grads), state

    tx = optax.GradientTransformation(lambda _: (), update)
    values = jax.ShapeDtypeStruct((), jnp.float32)
    with jax.disable_jit():
        assert check_values(tx, shapes(jnp.bfloat16), steps=3, value=values).ok
    assert {round(float(v), 4) for v in seen} == {1.0, 0.998, 0.996}
    assert seen[0].dtype == jnp.float32


def test_functions_get_the_params_that_were_given() -> None:
    def value_fn(params: Any) -> Any:
        assert params["w"].shape == (300, 2)  # As in a model that reshapes.
        return jnp.sum(jnp.square(params["w"].astype(jnp.float32)))

    def update(grads: Any, state: Any, params: Any = None, *, value_fn: Any, grad: Any) -> Any:
        expected = jax.grad(value_fn)(params)
        return tree_map(lambda *g: -0.03 * sum(g), grads, grad, expected), state

    tx = optax.GradientTransformation(lambda _: (), update)
    params = {"w": np.full((300, 2), 2.0, np.float32)}
    found = check_values(tx, params, value_fn=value_fn, grad=params)
    assert found.ok, found


def test_user_defined_nodes() -> None:
    node = {"n": Converting(jnp.ones(3, jnp.bfloat16)), "b": jnp.ones((), jnp.bfloat16)}
    assert check_values(optax.sgd(0.1, momentum=0.9), node).ok


def test_large_shapes_are_shrunk_but_factored_alike() -> None:
    tx = optax.adafactor(0.1)
    params = {
        "factored": jax.ShapeDtypeStruct((8192, 28672), jnp.bfloat16),
        "square": jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16),
        "vector": jax.ShapeDtypeStruct((8192,), jnp.bfloat16),
        "thin": jax.ShapeDtypeStruct((8192, 2), jnp.bfloat16),
    }
    smaller = shrunk_shapes(tx, params, params)
    assert smaller == {
        (8192, 28672): (128, 129),
        (8192, 8192): (128, 128),
        (8192,): (128,),
        (8192, 2): (128, 2),
    }
    assert shrunk_shapes(optax.sgd(0.1), params, params)[8192, 28672] == (4, 5)


@given(st.lists(st.lists(st.integers(1, 10_000), max_size=3).map(tuple), min_size=1, max_size=4))
@example([(4, 5)])
@settings(deadline=None, max_examples=30)
def test_shrunk_dimensions_keep_their_order(all_shapes: list[Any]) -> None:
    params = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in all_shapes]
    smaller = shrunk_shapes(optax.sgd(0.1), params, params)
    pairs = [p for shape in set(all_shapes) for p in zip(shape, smaller[shape])]
    for n, shrunk in pairs:
        assert shrunk == n if n <= 4 else 4 <= shrunk <= n
        assert all((n < m) == (shrunk < other) for m, other in pairs)


def test_shapes_stay_where_the_operations_depend_on_them() -> None:
    def scale_large(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return tree_map(lambda g: jnp.sin(g) if g.size > 1000 else g, grads), state

    large = {"w": jax.ShapeDtypeStruct((64, 64), jnp.float32)}
    tx = optax.GradientTransformation(lambda _: (), scale_large)
    assert shrunk_shapes(tx, large, large) == {(64, 64): (64, 64)}
    constant = jnp.ones((64, 64))
    tx = optax.GradientTransformation(
        lambda _: (), lambda g, s, _=None: ({"w": g["w"] * constant}, s)
    )
    assert check_values(tx, large, steps=3).ok


def test_the_users_debugging_modes_do_not_stop_the_search_for_nan() -> None:
    with jax.debug_nans(True):
        assert check_values(optax.sgd(0.1), shapes(jnp.float32), steps=3).ok
        assert jax.config.jax_debug_nans


def test_it_runs_outside_of_jit_for_at_least_one_step() -> None:
    with pytest.raises(ValueError, match=r"steps is 0\. Give at least 1"):
        check_values(optax.sgd(0.1), shapes(jnp.float32), steps=0)
    with pytest.raises(TypeError, match=r"outside of jax\.jit"):
        jax.jit(lambda p: check_values(optax.sgd(0.1), p).ok)(jnp.ones(3))


def test_empty_leaves_and_float8() -> None:
    assert check_values(optax.sgd(0.1), {"w": jnp.ones((0, 4)), "b": jnp.ones(3)}, steps=3).ok
    if Version(jax.__version__) < Version("0.4.31"):
        return  # These cannot give a float8 array to NumPy.
    found = check_values(optax.sgd(1e-3), {"w": jnp.ones(4, jnp.float8_e4m3fn)}, steps=3)
    assert found.ok
    assert found.notes == ("float8: only checked for numbers that are not finite",)


def test_a_model_with_functions_gets_advice() -> None:
    found = check_values(optax.adam(0.1), {"w": jnp.ones(3), "activation": jnp.tanh}, steps=3)
    assert "eqx.filter" in str(found)
    assert "did you mean" not in str(found).lower()
    with pytest.raises(TypeError, match=r"is not a gradient transformation\. Pass an object"):
        check_values(lambda _: 0.1, shapes(jnp.float32))
