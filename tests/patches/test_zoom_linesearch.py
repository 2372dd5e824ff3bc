from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

import optax_dtypefix
from optax_dtypefix._contract.x64 import x64
from support.contract import assert_keeps_the_contract
from support.nodes import Converting
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.trees import dtypes_of, tree_map, types

if TYPE_CHECKING:
    from support.fuzzing import Draw


HAS_LBFGS = hasattr(optax, "lbfgs")
needs_lbfgs = pytest.mark.skipif(not HAS_LBFGS, reason="L-BFGS came with optax 0.2.3")
needs_backtracking = pytest.mark.skipif(
    not hasattr(optax, "scale_by_backtracking_linesearch"),
    reason="the backtracking line search came with optax 0.2.0",
)


def fuzzed(draw: Draw) -> Any:
    if HAS_LBFGS and draw.of(True, False):
        return optax.lbfgs(
            memory_size=draw.of(1, 2),
            scale_init_precond=draw.of(True, False),
            linesearch=optax.scale_by_zoom_linesearch(2),
        )
    return optax.scale_by_backtracking_linesearch(draw.of(1, 3), store_grad=draw.of(True, False))


FUZZ = FuzzCase(fuzzed, "scale_by_backtracking_linesearch", any_gradients=True, takes_value=True)
PROGRAMS = {
    "direction": Program(lambda: optax.scale_by_lbfgs(10), releases=">=0.2.3"),
    "lbfgs": Program(lambda: optax.lbfgs(memory_size=10), jnp.bfloat16, ">=0.2.3", same="state"),
    "backtracking": Program(
        lambda: optax.scale_by_backtracking_linesearch(5, store_grad=True),
        jnp.bfloat16,
        ">=0.2.0",
        same="state",
    ),
}

MODES: dict[str, tuple[Any, bool]] = {
    "float32": (jnp.float32, False),
    "bfloat16": (jnp.bfloat16, False),
    "float16": (jnp.float16, False),
    "complex64": (jnp.complex64, False),
    "float32 in 64-bit mode": (jnp.float32, True),
    "bfloat16 in 64-bit mode": (jnp.bfloat16, True),
    "float64": (jnp.float64, True),
    "complex128": (jnp.complex128, True),
}
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.02, "float64": 1e-6}
DIAGONAL = np.asarray([1.0, 3.0, 0.5, 2.0])
TARGET = np.asarray([1.0, -2.0, 0.5, 1.5])
STEPS = 40  # 0.2.3 needs that many.


@pytest.fixture(params=one_of(3, MODES, 1))
def dtype(request: pytest.FixtureRequest) -> Any:
    """Run a test with each dtype, in 64-bit mode if its name says so."""
    kind, wide = MODES[request.param]
    if "complex" in request.param and Version(optax.__version__) < Version("0.2.5"):
        pytest.skip("stock compares complex slopes there, and raises")
    with x64(wide):
        yield jnp.dtype(kind)


complex_params = pytest.mark.skipif(
    Version(optax.__version__) < Version("0.2.5"), reason="stock compares complex slopes there"
)

# A search takes seconds to compile.
few_dtypes = pytest.mark.parametrize(
    "dtype", one_of(3, ["float16", "complex64", "float32 in 64-bit mode"]), indirect=True
)


def target(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.asarray(TARGET + 1j * TARGET[::-1], dtype)
    return jnp.asarray(TARGET, dtype)


def loss(params: Any) -> Any:
    """Return a quadratic that is zero at the target, in the real dtype of the params."""
    difference = params - target(params.dtype)
    real = jnp.real(difference * jnp.conj(difference))
    return (real * jnp.asarray(DIAGONAL, real.dtype)).sum() / 2


def start(dtype: Any) -> Any:
    return jnp.zeros(4, dtype)  # A bare array: up to 0.2.1 stock cannot search a dict in a state.


def step(tx: Any, carry: Any, function: Any = loss, from_state: bool = False) -> Any:
    """Update the params once, with conjugated gradients as in the documentation of L-BFGS."""
    params, state = carry
    if from_state:
        value, grads = optax.value_and_grad_from_state(function)(params, state=state)
    else:
        value, grads = jax.value_and_grad(function)(params)
    grads = tree_map(jnp.conj, grads)
    updates, state = tx.update(grads, state, params, value=value, grad=grads, value_fn=function)
    return tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates), state


def extra_args(params: Any, function: Any = loss) -> dict[str, Any]:
    grads = tree_map(jnp.conj, jax.grad(function)(params))
    return {"value": function(params), "grad": grads, "value_fn": function}


def assert_found(params: Any) -> None:
    dtype = params.dtype
    tolerance = TOLERANCE[jnp.finfo(dtype).dtype.name]
    wide = np.complex128 if jnp.issubdtype(dtype, jnp.complexfloating) else np.float64
    found, expected = (np.asarray(leaf).astype(wide) for leaf in (params, target(dtype)))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@needs_lbfgs
def test_lbfgs_finds_the_minimum_in_one_trace(dtype: Any) -> None:
    tx, traces = optax.lbfgs(), []

    def train_step(carry: Any) -> Any:
        traces.append(None)
        return step(tx, carry)

    jitted, carry = jax.jit(train_step), (start(dtype), tx.init(start(dtype)))
    expected = types(carry)
    for _ in range(STEPS):
        carry = jitted(carry)
    assert types(carry) == expected
    assert len(traces) == 1
    assert_found(carry[0])


@needs_lbfgs
def test_lbfgs_works_in_a_checkpointed_scan() -> None:
    """See https://github.com/google-deepmind/optax/issues/1210, as met in optimistix."""
    internal = pytest.importorskip("equinox").internal
    with x64():
        tx = optax.lbfgs()
        carry = start(jnp.dtype(jnp.float64)), tx.init(start(jnp.dtype(jnp.float64)))

        def body(carry: Any, _: Any) -> Any:
            return step(tx, carry), None

        carry, _ = internal.scan(
            body, carry, None, length=STEPS, kind="checkpointed", checkpoints=3
        )
        assert_found(carry[0])


def found_from_state(dtype: Any, function: Any) -> Any:
    """Run L-BFGS in a scan, with the value and gradient that the search left in the state."""
    tx = optax.lbfgs()

    def body(carry: Any, _: None) -> Any:
        return step(tx, carry, function, from_state=True), None

    carry = start(dtype), tx.init(start(dtype))
    carry, _ = jax.jit(lambda c: jax.lax.scan(body, c, None, length=STEPS))(carry)
    return carry


@needs_lbfgs
@few_dtypes
def test_lbfgs_works_with_value_and_grad_from_state(dtype: Any) -> None:
    params, _ = found_from_state(dtype, loss)
    assert_found(params)


@needs_lbfgs
def test_bfloat16_params_may_have_a_float32_loss() -> None:
    def wide_loss(params: Any) -> Any:
        return loss(tree_map(lambda p: p.astype(jnp.float32), params))

    params, _ = found_from_state(jnp.bfloat16, wide_loss)
    assert_found(params)


class Search(NamedTuple):
    """The state of a user-defined line search."""

    value: Any
    grad: Any


@needs_backtracking
def test_value_and_grad_from_state_reads_the_state_of_any_search() -> None:
    params, state = jnp.ones(2, jnp.bfloat16), Search(jnp.float32(7), jnp.ones(2, jnp.bfloat16))
    value, grads = jax.jit(optax.value_and_grad_from_state(jnp.sum))(params, state=state)
    assert value.dtype == jnp.float32
    assert float(value) == 7
    np.testing.assert_array_equal(grads, state.grad)


@needs_lbfgs
@pytest.mark.parametrize("of_params", [jnp.float32, jnp.float64])
def test_a_double_gradient_beside_a_single_param_needs_no_unsafe_cast(of_params: Any) -> None:
    """JAX warns of a float64 that is stored in a float32 array: here, the weights."""
    with x64():
        params = (jnp.ones((), jnp.float32), jnp.ones((), of_params))
        grads = (params[0], jnp.ones((), jnp.float64))
        tx = optax.scale_by_lbfgs(memory_size=1)
        state = tx.init(params)
        _, new_state = tx.update(grads, state, params)
    assert types(new_state) == types(state)


@needs_lbfgs
def test_a_double_leaf_beside_a_single_one_keeps_its_digits() -> None:
    """The weights, sums over all leaves, are float64, as on stock."""

    def directions(scale_by_lbfgs: Any, other: Any) -> Any:
        params = {"other": jnp.zeros(1, other), "x": jnp.asarray([1.0, 2.0, 3.0], jnp.float64)}
        tx, found = scale_by_lbfgs(), []
        state = tx.init(params)
        for _ in range(4):
            grads = {**params, "x": jnp.asarray([1.0, 7.0, 30.0]) * params["x"] ** 3}
            updates, state = tx.update(grads, state, params)
            params = {**params, "x": params["x"] - 0.003 * updates["x"]}
            found.append(updates["x"])
        return found

    with x64():
        exact = directions(optax_dtypefix.original(optax.scale_by_lbfgs), jnp.float64)
        np.testing.assert_allclose(directions(optax.scale_by_lbfgs, jnp.float32), exact, rtol=1e-12)


@needs_lbfgs
def test_a_mixed_tree_finds_the_minimum() -> None:
    """Stock takes the dtype of all leaves from the first one, which is the narrow one."""
    params = {"a": jnp.zeros(4, jnp.bfloat16), "x": jnp.zeros(4, jnp.float32)}

    def both(params: Any) -> Any:
        return loss(params["x"]) + loss(params["a"].astype(jnp.float32))

    tx = optax.lbfgs()
    assert_keeps_the_contract(tx, params, extra=lambda params: extra_args(params, both))

    jitted, carry = jax.jit(lambda c: step(tx, c, both)), (params, tx.init(params))
    for _ in range(STEPS):
        carry = jitted(carry)
    params = carry[0]
    assert_found(params["x"])
    assert_found(params["a"])


@needs_lbfgs
def test_every_variant_of_lbfgs_keeps_the_contract() -> None:
    """A user-defined search, none with a learning rate, and a search after another optimizer."""
    search = (
        optax.scale_by_zoom_linesearch(max_linesearch_steps=5, initial_guess_strategy="one")
        if (optax.__version__ != "0.2.3")
        else optax.scale_by_zoom_linesearch(max_linesearch_steps=5)
    )

    params = jnp.ones(4, jnp.bfloat16)
    assert_keeps_the_contract(optax.lbfgs(linesearch=search), params, extra=extra_args)
    assert_keeps_the_contract(optax.lbfgs(0.1, linesearch=None), params, extra=extra_args)
    assert_keeps_the_contract(optax.chain(optax.sgd(1.0), search), params, extra=extra_args)


@needs_lbfgs
def test_a_default_search_that_a_reload_built_with_the_patch_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stock = optax_dtypefix.original(optax.lbfgs)
    *others, _ = stock.__defaults__
    monkeypatch.setattr(stock, "__defaults__", (*others, optax.scale_by_zoom_linesearch(7)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert callable(optax.lbfgs().update)
    assert not caught


@needs_backtracking
@few_dtypes
@pytest.mark.parametrize("store_grad", [False, True])
def test_backtracking_finds_the_minimum(dtype: Any, store_grad: bool) -> None:
    search = optax.scale_by_backtracking_linesearch(15, store_grad=store_grad)
    tx = optax.chain(optax.sgd(1.0), search)
    carry = start(dtype), tx.init(start(dtype))
    expected = types(carry)

    def body(carry: Any, _: None) -> Any:
        params, state = carry
        if store_grad:
            value, grads = optax.value_and_grad_from_state(loss)(params, state=state)
        else:
            value, grads = jax.value_and_grad(loss)(params)
        # The direction is the conjugate; the search itself takes JAX's gradient.
        updates, state = tx.update(
            tree_map(jnp.conj, grads), state, params, value=value, grad=grads, value_fn=loss
        )
        return (tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates), state), None

    carry, _ = jax.jit(lambda c: jax.lax.scan(body, c, None, length=40))(carry)
    assert types(carry) == expected
    wide = np.asarray(carry[0]).astype(np.complex128)
    np.testing.assert_allclose(wide, np.asarray(target(dtype)).astype(np.complex128), atol=0.1)


@complex_params
@needs_backtracking
@pytest.mark.parametrize("phase", [1, 1j])
def test_backtracking_never_accepts_a_larger_loss(phase: complex) -> None:
    """A full step is too long. Conjugated, an imaginary gradient would give a slope > 0."""

    def square(params: Any) -> Any:
        return (jnp.abs(params) ** 2).sum()

    tx = optax.scale_by_backtracking_linesearch(40, slope_rtol=0.9)
    params = jnp.full(4, phase, jnp.complex64)
    value, grad = jax.value_and_grad(square)(params)
    updates, _ = tx.update(
        -10 * jnp.conj(grad), tx.init(params), params, value=value, grad=grad, value_fn=square
    )
    assert square(params + updates) < value


# Stock stores the gradient in the dtype of the params.
@complex_params
@needs_lbfgs
@pytest.mark.filterwarnings("ignore:Casting from complex to real")
def test_a_complex_direction_of_real_params_is_searched() -> None:
    goal = 1 + 1j

    def distance(params: Any) -> Any:
        return (jnp.abs(params - goal) ** 2).sum()

    tx, params, direction = optax.scale_by_zoom_linesearch(15), jnp.zeros(4), jnp.full(4, 2 + 4j)
    updates, _ = tx.update(
        direction,
        tx.init(params),
        params,
        value=distance(params),
        grad=jnp.full(4, -2 * goal),
        value_fn=distance,
    )
    # Of all rates, 0.3 is the best. For real parts it is 0.5.
    np.testing.assert_allclose(updates, 0.3 * direction, rtol=1e-2)


@needs_lbfgs
def test_gradients_in_another_container_raise_as_on_stock() -> None:
    tx, params, grads = optax.scale_by_zoom_linesearch(5), {"w": start(jnp.float32)}, jnp.ones(4)
    given = {"value": jnp.float32(1), "grad": [grads], "value_fn": lambda tree: loss(tree["w"])}
    with pytest.raises(ValueError, match=r"structure|Expected dict"):
        tx.update([-grads], tx.init(params), params, **given)


@needs_backtracking
def test_extra_arguments_of_the_loss_are_found_by_name() -> None:
    def scaled(params: Any, scale: Any) -> Any:
        return loss(params) * scale

    tx = optax.scale_by_backtracking_linesearch(5)
    params = jnp.ones(4, jnp.complex64)
    updates, _ = tx.update(
        -jnp.conj(jax.grad(loss)(params)),
        tx.init(params),
        params,
        value=scaled(params, 2.0),
        grad=jax.grad(loss)(params),
        value_fn=scaled,
        scale=2.0,
    )
    assert np.isfinite(np.asarray(updates)).all()


@needs_lbfgs
@pytest.mark.parametrize("dtype", one_of(2, ["bfloat16", "float16"]))
def test_rounding_errors_are_not_used_as_curvature(dtype: str) -> None:
    """The state keeps the previous float32 gradient in the dtype of the params."""
    slope = jnp.asarray([0.37, -0.21, 0.113], jnp.float32)
    tx = optax.lbfgs(0.1, linesearch=None)
    params = jnp.zeros(3, dtype)
    state = tx.init(params)
    for _ in range(6):
        updates, state = tx.update(slope, state, params)
        params = optax.apply_updates(params, updates)
    # The slope is constant, so there is no curvature: six steps of 0.1 downhill.
    np.testing.assert_allclose(np.asarray(params, np.float32), -0.6 * slope, rtol=0.2)


@needs_lbfgs
@pytest.mark.parametrize("grads", one_of(3, ["bfloat16", "float16", "int8"]))
def test_narrow_gradients_of_float32_params_give_float32_directions(grads: str) -> None:
    """The directions are those of the same gradients in float32."""
    tx = optax.scale_by_lbfgs()
    slopes = [jnp.asarray(slope, grads) for slope in ([3, -2, 1], [2, -1, 1])]
    params = [jnp.ones(3), jnp.ones(3) * 1.1]

    def directions(slopes: list[Any]) -> list[Any]:
        state, found = tx.init(params[0]), []
        for slope, point in zip(slopes, params):
            direction, state = tx.update(slope, state, point)
            found.append(direction)
        return found

    wide = directions([slope.astype(jnp.float32) for slope in slopes])
    for direction, expected in zip(directions(slopes), wide):
        assert direction.dtype == jnp.float32
        np.testing.assert_allclose(direction, expected, rtol=1e-6)


@needs_backtracking
@pytest.mark.parametrize("dtype", one_of(2, ["bfloat16", "float16"]))
def test_a_search_along_a_narrow_direction_gives_float32_updates(dtype: str) -> None:
    tx, params = optax.scale_by_backtracking_linesearch(5), jnp.full(4, 3.0)
    slope = jax.grad(loss)(params)
    updates, _ = tx.update(
        (-0.3 * slope).astype(dtype),
        tx.init(params),
        params,
        value=loss(params),
        grad=slope,
        value_fn=loss,
    )
    assert updates.dtype == jnp.float32


@needs_lbfgs
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("dtype", one_of(2, ["float32", "bfloat16"], 1))
def test_the_loss_runs_in_strict_promotion(enabled: bool, dtype: str) -> None:
    modes = []

    def own_loss(params: Any) -> Any:
        modes.append(str(jax.config.jax_numpy_dtype_promotion))
        return jnp.sum(params * params)

    with x64(enabled), jax.numpy_dtype_promotion("strict"):
        tx, params = optax.lbfgs(), jnp.ones(4, dtype)
        state = tx.init(params)
        value, slope = jax.value_and_grad(own_loss)(params)
        updates, _ = tx.update(slope, state, params, value=value, grad=slope, value_fn=own_loss)
    assert updates.dtype == jnp.dtype(dtype)
    assert all("strict" in mode.lower() for mode in modes)


@needs_backtracking
def test_the_loss_sees_the_dtypes_of_the_params() -> None:
    """The search itself computes in float32."""
    searches = [optax.scale_by_backtracking_linesearch(3)]
    if hasattr(optax, "lbfgs"):
        searches.append(optax.scale_by_zoom_linesearch(3))
    params = {"w": jnp.ones(4, jnp.bfloat16), "b": jnp.ones(2), "h": jnp.ones(2, jnp.float16)}
    seen = []

    def own_loss(params: Any) -> Any:
        seen.append(dtypes_of(params))
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in params.values())

    for tx in searches:
        value, grads = jax.value_and_grad(own_loss)(params)
        downhill = tree_map(jnp.negative, grads)
        arguments = {"value": value, "grad": grads, "value_fn": own_loss}
        tx.update(downhill, tx.init(params), params, **arguments)
    assert len(seen) > 2 * len(searches)
    assert all(dtypes == dtypes_of(params) for dtypes in seen)


@complex_params
@needs_lbfgs
@pytest.mark.parametrize("enabled", one_of(2, [False, True]))
def test_nodes_only_receive_arrays(enabled: bool) -> None:
    """The patch must not put pairs for complex leaves, or shapes, into a user-defined node."""

    def own_loss(params: Any) -> Any:
        real, turning = params.children
        far = turning - (1 + 2j)
        return jnp.sum((real - 1) ** 2) + jnp.sum(jnp.real(far * jnp.conj(far)))

    with x64(enabled):
        tx = optax.lbfgs()
        params = Converting(jnp.zeros(2, jnp.float32), jnp.zeros(2, jnp.complex64))
        carry = params, tx.init(params)
        for _ in range(3):
            carry = step(tx, carry, own_loss)
        real, turning = carry[0].children
        np.testing.assert_allclose(real, 1, rtol=1e-3)
        np.testing.assert_allclose(turning, 1 + 2j, rtol=1e-3)


@needs_backtracking
def test_a_stored_gradient_of_an_integer_param_is_a_float_from_init_on() -> None:
    tx = optax.scale_by_backtracking_linesearch(2, store_grad=True)

    def states(params: Any, value: Any) -> Any:
        state = tx.init(params)
        _, new_state = tx.update(
            params, state, params, value=value, grad=params, value_fn=lambda _: jnp.float32(1)
        )
        return state.grad, new_state.grad

    shapes = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.float32)
    try:
        before, after = jax.eval_shape(states, *shapes)
    except OverflowError:
        pytest.skip("stock takes no integer params: it casts infinity to their dtype")
    assert before.dtype == after.dtype == jnp.float32
