from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

from optax_dtypefix._contract.x64 import x64
from optax_dtypefix._diagnosis.faults import _reproduce as reproduce
from support.contract import assert_keeps_the_contract
from support.patch_cases import FuzzCase, Program
from support.python_calls import calls_into_the_shim
from support.thorough import one_of
from support.transformations import drifting
from support.trees import dtypes_of, in_float64, leaves, tree_map, tree_of

if TYPE_CHECKING:
    from support.fuzzing import Draw


RELEASE = Version(optax.__version__)
HAS_SKIP = "should_skip_update_fn" in inspect.signature(optax.MultiSteps).parameters
HAS_EXTRA_ARGS = hasattr(optax, "GradientTransformationExtraArgs")


def fuzzed(draw: Draw) -> Any:
    return optax.MultiSteps(
        draw.inner(),
        draw.of(1, 2, 3, lambda step: jnp.where(step < 2, 1, 3)),
        use_grad_mean=draw.of(True, False),
    )


FUZZ = FuzzCase(fuzzed, any_gradients=True)


def mean_of_two(inner: Any, **options: Any) -> Any:
    return optax.MultiSteps(inner, 2, **options)


PROGRAMS = {
    "adam": Program(lambda: mean_of_two(optax.adam(1e-2))),
    "adam bfloat16": Program(
        lambda: mean_of_two(optax.adam(1e-2)), jnp.bfloat16, releases=">=0.2.8"
    ),
    "momentum": Program(lambda: mean_of_two(optax.sgd(0.1, momentum=0.9))),
    "momentum float16": Program(
        lambda: mean_of_two(optax.sgd(0.1, momentum=0.9)), jnp.float16, releases=">=0.2.8"
    ),
    "sum": Program(lambda: mean_of_two(optax.sgd(0.1), use_grad_mean=False)),
    "schedule": Program(lambda: optax.MultiSteps(optax.sgd(0.1), lambda _: 2)),
    "adafactor": Program(lambda: mean_of_two(optax.adafactor(1e-3)), jnp.bfloat16, same="state"),
    "adam complex": Program(lambda: mean_of_two(optax.adam(1e-3)), jnp.complex64, same="state"),
}
if HAS_SKIP:
    PROGRAMS["skip"] = Program(
        lambda: mean_of_two(optax.adam(1e-2), should_skip_update_fn=optax.skip_not_finite)
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"use_grad_mean": False},
    "schedule": {"every_k_schedule": lambda step: jnp.where(step > 0, 2, 3)},
}
if HAS_SKIP:
    OPTIONS["skip"] = {"should_skip_update_fn": optax.skip_not_finite}
    OPTIONS["skip large"] = {
        "should_skip_update_fn": functools.partial(optax.skip_large_updates, max_squared_norm=1e4)
    }


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize(
    "inner", [drifting, lambda: optax.adafactor(1e-2)], ids=["own", "adafactor"]
)
def test_the_inner_transformation_may_change_dtypes(inner: Any, options: dict[str, Any]) -> None:
    tx = optax.MultiSteps(inner(), **{"every_k_schedule": 2, **options})
    assert_keeps_the_contract(tx, tree_of(jnp.bfloat16), tree_of(jnp.float32))
    assert reproduce.one_step(tx, jnp.bfloat16) is None


def test_the_inner_transformation_may_be_anything_with_init_and_update() -> None:
    tx = optax.MultiSteps(optax.MultiSteps(optax.sgd(1.0), 2), 2)
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    assert_keeps_the_contract(tx, params)
    state, emitted = tx.init(params), []
    for _ in range(4):
        updates, state = tx.update(params, state, params)
        emitted.append(float(updates["w"][0]))
    assert emitted == [0.0, 0.0, 0.0, -1.0]


def test_params_may_be_none() -> None:
    tx = optax.MultiSteps(optax.sgd(1.0), 2)
    grads = tree_of(jnp.float32)
    updates, state = tx.update(grads, tx.init(grads))
    updates, state = tx.update(grads, state)
    np.testing.assert_allclose(updates["w"], -grads["w"], rtol=1e-6)


@pytest.mark.parametrize("mean", one_of(2, [True, False]))
@pytest.mark.parametrize(
    ("params_dtype", "grads_dtype", "tolerance"),
    [
        (jnp.float32, jnp.float32, 1e-6),
        (jnp.float32, jnp.bfloat16, 1e-2),
        (jnp.bfloat16, jnp.float32, 2e-2),
        (jnp.bfloat16, jnp.bfloat16, 2e-2),
        (jnp.complex64, jnp.complex64, 1e-6),
    ],
)
def test_gradients_are_accumulated(
    params_dtype: Any, grads_dtype: Any, tolerance: float, mean: bool
) -> None:
    tx = optax.MultiSteps(optax.sgd(1.0), 3, use_grad_mean=mean)
    params = tree_of(params_dtype)
    factor = 1 + 2j if jnp.issubdtype(grads_dtype, jnp.complexfloating) else 1
    window = [tree_map(lambda g: g * factor, tree_of(grads_dtype, seed=i)) for i in range(3)]
    state = tx.init(params)
    for grads in window:
        updates, state = jax.jit(tx.update)(grads, state, params)
    wide = np.complex128 if factor != 1 else np.float64
    total = sum(np.asarray(grads["w"]).astype(wide) for grads in window)
    expected = -total / 3 if mean else -total
    got = np.asarray(updates["w"]).astype(wide)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mean", one_of(2, [True, False]))
@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
@pytest.mark.parametrize("count", [16, 512])
def test_half_precision_is_accumulated_in_float32(dtype: Any, count: int, mean: bool) -> None:
    random = np.random.default_rng(0)
    grads = jnp.asarray(random.normal(1.0, 1.0, size=(count, 5)), dtype)
    tx, params = optax.MultiSteps(optax.sgd(1.0), count, use_grad_mean=mean), grads[0]
    state = tx.init(params)
    state, updates = jax.lax.scan(lambda s, g: tx.update(g, s, params)[::-1], state, grads)
    assert state.acc_grads.dtype == jnp.float32
    assert updates.dtype == dtype
    exact = np.asarray(grads).astype(np.float64).sum(axis=0) / (count if mean else 1)
    rounding = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(-np.asarray(updates[-1], np.float64), exact, rtol=rounding)


INNER: dict[str, Any] = {
    "sgd": lambda: optax.sgd(0.1),
    "clip": lambda: optax.clip_by_global_norm(1.0),
    "masked adam": lambda: optax.masked(optax.adam(0.1), {"w": True, "b": False}),
    "multi_transform": lambda: optax.multi_transform(
        {"a": optax.adam(0.1), "b": optax.sgd(0.1)}, {"w": "a", "b": "b"}
    ),
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated:FutureWarning")  # In 0.1.2.
@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_without_params_updates_are_as_wide_as_on_stock(inner: Any) -> None:
    tx = optax.MultiSteps(inner(), 2)
    halves = {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.ones((), jnp.float16)}
    state = tx.init(halves)
    for _ in range(2):
        updates, state = jax.jit(tx.update)(halves, state)
        assert dtypes_of(updates) == dtypes_of(halves)


def test_without_params_updates_of_float64_params_are_as_wide_as_on_stock() -> None:
    with x64():
        tx, params = optax.MultiSteps(optax.sgd(0.5), 1), {"w": jnp.ones(3, jnp.float64)}
        grads = {"w": jnp.ones(3, jnp.float32)}
        updates, _ = tx.update(grads, tx.init(params))
        wide = Version(optax.__version__) < Version("0.2.8")  # As accumulators are there.
        assert updates["w"].dtype == (jnp.float64 if wide else jnp.float32)


@pytest.mark.skipif(Version(jax.__version__) < Version("0.4.31"), reason="XLA had no int4 arrays")
def test_int4_params_get_float_updates() -> None:
    """JAX promotes int4 with nothing else."""
    tx, params = optax.MultiSteps(optax.sgd(0.5), 1), jnp.ones(3, jnp.int4)
    updates, _ = tx.update(jnp.ones(3, jnp.float32), tx.init(params), params)
    np.testing.assert_array_equal(updates, -0.5)


def test_params_in_another_structure_do_not_set_the_dtypes() -> None:
    """sgd does not look at them, so the params of a whole model may be given."""
    tx, params = optax.MultiSteps(optax.sgd(0.5), 1), {"w": jnp.ones(3, jnp.bfloat16)}
    more = {"a": jnp.ones(2, jnp.float32), **params}
    updates, _ = tx.update(params, tx.init(params), more)
    assert updates["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(updates["w"], -0.5 * params["w"])


def test_without_params_gradients_stand_in_for_them_unless_moments_do() -> None:
    halves = jnp.ones(3, jnp.bfloat16)
    for inner, expected in ((optax.sgd(0.1), jnp.bfloat16), (optax.adam(0.1), jnp.float32)):
        tx = optax.MultiSteps(inner, 2)
        updates, _ = jax.jit(tx.update)(halves, tx.init(jnp.ones(3)))
        assert updates.dtype == expected


def test_float64_is_accumulated_in_float64() -> None:
    with x64():
        tx = optax.MultiSteps(optax.sgd(1.0), 2)
        params = {"w": jnp.zeros(3, jnp.float64)}
        state = tx.init(params)
        for value in (1.0, 1.0 + 1e-12):
            updates, state = tx.update({"w": jnp.full(3, value, jnp.float64)}, state, params)
        np.testing.assert_allclose(np.asarray(updates["w"]) + 1.0, -5e-13, rtol=1e-3)


@pytest.mark.skipif(
    "accumulator_dtype" not in inspect.signature(optax.MultiSteps).parameters,
    reason="accumulator_dtype came with optax 0.2.8",
)
def test_accumulators_have_the_dtype_that_was_asked_for() -> None:
    tx = optax.MultiSteps(optax.sgd(1.0), 2, accumulator_dtype=jnp.bfloat16)
    state = tx.init({"w": jnp.zeros(3, jnp.float32), "z": jnp.zeros(3, jnp.complex64)})
    assert state.acc_grads["w"].dtype == jnp.bfloat16
    assert state.acc_grads["z"].dtype == jnp.complex64


@pytest.mark.parametrize("mean", one_of(2, [True, False]))
@pytest.mark.parametrize(
    ("params_dtype", "grads_dtype"),
    [(jnp.float32, jnp.int8), (jnp.int32, jnp.int32), (jnp.int32, jnp.float32)],
)
def test_integers_are_accumulated_in_floats(
    params_dtype: Any, grads_dtype: Any, mean: bool
) -> None:
    tx = optax.MultiSteps(optax.sgd(0.5), 2, use_grad_mean=mean)
    params = {"w": jnp.ones(3), "n": jnp.asarray([4, 6], params_dtype)}
    window = [{"w": jnp.ones(3), "n": jnp.asarray(n, grads_dtype)} for n in ([1, -1], [2, 0])]
    state = tx.init(params)
    assert state.acc_grads["n"].dtype == jnp.float32
    dtypes = dtypes_of(state)
    for grads in window:
        updates, state = jax.jit(tx.update)(grads, state, params)
        assert dtypes_of(state) == dtypes
    assert updates["n"].dtype == jnp.float32
    np.testing.assert_array_equal(updates["n"], [-0.75, 0.25] if mean else [-1.5, 0.5])


def test_an_int64_schedule_in_64_bit_mode() -> None:
    with x64():
        steps = jnp.asarray([2, 3], jnp.int64)
        tx = optax.MultiSteps(optax.sgd(1.0), lambda step: steps[jnp.minimum(step, 1)])
        params = {"w": jnp.ones(3, jnp.float32)}
        state = tx.init(params)
        emitted = []
        for _ in range(5):
            updates, state = tx.update(params, state, params)
            emitted.append(bool((updates["w"] != 0).all()))
        assert emitted == [False, True, False, False, True]
        assert state.mini_step.dtype == state.gradient_step.dtype == jnp.int32


@pytest.mark.skipif(Version("0.1.8") > RELEASE, reason="the counter of 0.1.7 is an integer")
def test_a_fractional_schedule_is_not_rounded() -> None:
    """Its counter would become a float, which stock does not accept in a loop."""
    tx, params = optax.MultiSteps(optax.sgd(1.0), lambda _: jnp.float32(2.5)), {"w": jnp.ones(3)}
    with pytest.raises(TypeError):
        jax.lax.scan(lambda s, _: tx.update(params, s, params)[::-1], tx.init(params), None, 3)


def test_an_inner_sum_of_integer_gradients_is_a_float_from_the_start() -> None:
    """MultiSteps shows the inner transformation the mean of the gradients."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        total = tree_map(lambda g, t: g + t, grads, state)
        return total, total

    inner = optax.GradientTransformation(lambda params: tree_map(jnp.zeros_like, params), update)
    tx, params = optax.MultiSteps(inner, 2), {"n": jnp.asarray([1, 4], jnp.int32)}
    assert_keeps_the_contract(tx, params)
    state = tx.init(params)
    for grad in ([1, 4], [2, 8]):
        _, state = tx.update({"n": jnp.asarray(grad, jnp.int32)}, state, params)
    np.testing.assert_array_equal(state.inner_opt_state["n"], [1.5, 6])


def test_real_gradients_are_accumulated_by_a_function_of_stock() -> None:
    """Ours keeps real leaves real beside complex ones, and takes four calls a leaf."""
    tx, params = optax.MultiSteps(optax.sgd(0.1), 2), tree_of("float32", "float32")
    state = tx.init(params)
    assert "acc_update" not in calls_into_the_shim(lambda: tx.update(params, state, params))


def test_moments_of_an_inner_transformation_of_yours_are_rounded() -> None:
    """Each step takes .1 % off a moment: rounded to nearest, as newer stock does, it would stay."""

    def init(params: Any) -> Any:
        ones = tree_map(jnp.ones_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), ones, ones)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        nu = tree_map(lambda moment: jnp.float32(0.999) * moment, state.nu)
        return grads, optax.ScaleByAdamState(state.count + 1, state.mu, nu)

    params = {"w": jnp.ones(64, jnp.bfloat16)}
    tx = optax.MultiSteps(optax.GradientTransformation(init, update), 1)
    step = jax.jit(tx.update)
    state = tx.init(params)
    for _ in range(500):
        _, state = step(params, state, params)
    (nu,) = leaves(state.inner_opt_state.nu)
    assert nu.dtype == jnp.bfloat16
    assert abs(nu.astype(jnp.float32).mean() / 0.999**500 - 1) < 0.03


def test_an_inner_state_of_another_structure_raises() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return grads, {"only": state[0]}

    inner = optax.GradientTransformation(lambda _: (jnp.zeros(2),), update)
    tx, params = optax.MultiSteps(inner, 2), {"w": jnp.ones(3)}
    with pytest.raises((TypeError, ValueError)):
        jax.jit(tx.update)(params, tx.init(params), params)


@pytest.mark.skipif(not HAS_EXTRA_ARGS, reason="extra arguments came with optax 0.1.5")
def test_extra_arguments_may_be_functions_and_arrays() -> None:
    def update(
        grads: Any, state: Any, params: Any = None, *, value: Any, value_fn: Any, **_: Any
    ) -> Any:
        return tree_map(lambda g: g * (value + value_fn(params)).astype(g.dtype), grads), state

    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    tx = optax.MultiSteps(inner, 2)
    params = {"w": jnp.ones(3, jnp.bfloat16)}

    def extra(_: Any) -> dict[str, Any]:
        return {"value": jnp.float32(2.0), "value_fn": lambda params: params["w"].sum()}

    assert_keeps_the_contract(tx, params, extra=extra)
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(params, state, params, **extra(params))
    np.testing.assert_array_equal(np.asarray(updates["w"], np.float32), 5.0)


def test_complex_gradients_are_accumulated_in_a_real_state_from_stock() -> None:
    """Stock 0.2.8 accumulates them in float32. A checkpoint of such a state still runs."""
    tx = optax.MultiSteps(optax.sgd(1.0), 2)
    params = tree_of(jnp.complex64)
    grads = tree_map(lambda p: p * (1 + 2j), params)
    state = tx.init(params)
    state = state._replace(acc_grads=tree_map(jnp.real, state.acc_grads))
    for _ in range(2):
        updates, state = jax.jit(tx.update)(grads, state, params)
    np.testing.assert_allclose(updates["w"], -grads["w"], rtol=1e-6)


@pytest.mark.parametrize("skip", [False, True] if HAS_SKIP else [False])
@pytest.mark.parametrize("learning_rate", one_of(2, [1e-2, 1e-9]))
@pytest.mark.parametrize("half", one_of(2, [jnp.bfloat16, jnp.float16]))
def test_half_precision_gradients_do_not_narrow_the_updates(
    half: Any, learning_rate: float, skip: bool
) -> None:
    """200 steps of adam, each update against float64 from the same gradients."""
    options = {"should_skip_update_fn": optax.skip_not_finite} if skip else {}
    tx = optax.MultiSteps(optax.adam(learning_rate), 2, **options)
    params = {"w": jnp.zeros(5, jnp.float32)}
    random = np.random.default_rng(0)
    grads = jnp.asarray(random.normal(size=(400, 5)), half)

    def step(state: Any, grad: Any) -> Any:
        updates, state = tx.update({"w": grad}, state, params)
        return state, updates["w"]

    _, got = jax.jit(lambda *args: jax.lax.scan(step, *args))(tx.init(params), grads)
    assert got.dtype == jnp.float32
    means = in_float64(grads).reshape(200, 2, 5).mean(axis=1)
    # From 0.2.8 on, stock rounds the mean to the dtype of the gradients.
    tolerance = 2e-5 if Version("0.2.8") > RELEASE else float(jnp.finfo(half).eps)
    first = second = np.zeros(5)
    for count, mean in enumerate(means, 1):
        first, second = 0.9 * first + 0.1 * mean, 0.999 * second + 0.001 * mean**2
        exact = first / (1 - 0.9**count) / (np.sqrt(second / (1 - 0.999**count)) + 1e-8)
        error = got[2 * count - 1] / learning_rate + exact
        assert np.abs(error).max() < tolerance


@pytest.mark.parametrize("wide", one_of(2, [jnp.float32, None]))
@pytest.mark.parametrize("params_dtype", one_of(3, [jnp.bfloat16, jnp.float16, jnp.float32]))
@pytest.mark.parametrize("grads_dtype", one_of(3, [jnp.bfloat16, jnp.float16, jnp.float32]))
def test_updates_have_the_dtypes_of_the_inner_transformation(
    params_dtype: Any, grads_dtype: Any, wide: Any
) -> None:
    inner = optax.adam(0.1, mu_dtype=wide)
    tx = optax.MultiSteps(inner, 2)
    params, grads = tree_of(params_dtype), tree_of(grads_dtype)
    expected, _ = inner.update(grads, inner.init(params), params)
    state = tx.init(params)
    for _ in range(3):
        updates, state = jax.jit(tx.update)(grads, state, params)
        assert [u.dtype for u in leaves(updates)] == [u.dtype for u in leaves(expected)]


@pytest.mark.parametrize("grads_dtype", one_of(3, [jnp.float32, jnp.bfloat16, jnp.float16], 1))
@pytest.mark.parametrize("params_dtype", one_of(2, [jnp.float32, jnp.bfloat16], 1))
def test_the_inner_transformation_gets_the_dtypes_of_stock(
    params_dtype: Any, grads_dtype: Any
) -> None:
    seen = []

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        seen.append((grads["w"].dtype, state["w"].dtype, params["w"].dtype))
        return tree_map(lambda g: g.astype(jnp.float32), grads), state

    tx = optax.MultiSteps(optax.GradientTransformation(lambda params: params, update), 2)
    params, grads = tree_of(params_dtype), tree_of(grads_dtype)
    jax.jit(tx.update)(grads, tx.init(params), params)
    both = jnp.promote_types(params_dtype, grads_dtype)
    shown = both if Version("0.2.8") > RELEASE else np.dtype(grads_dtype)
    assert {*seen} == {(shown, np.dtype(params_dtype), np.dtype(params_dtype))}


def test_gradients_under_other_keys_raise() -> None:
    tx = optax.MultiSteps(optax.sgd(1.0), 2)
    params = {"w": jnp.ones(3)}
    with pytest.raises((ValueError, KeyError)):
        tx.update({"v": jnp.ones(3)}, tx.init(params), params)


@pytest.mark.parametrize(
    "dtypes",
    one_of(4, [("bfloat16",), ("float16",), ("bfloat16", "float32"), ("complex64",)]),
    ids=str,
)
def test_strict_promotion_accepts_any_dtype(dtypes: Any) -> None:
    params = tree_of(*dtypes)
    with jax.numpy_dtype_promotion("strict"):
        tx = optax.MultiSteps(optax.sgd(0.5), 2)
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(params, state, params)
    for got, param in zip(leaves(updates), leaves(params)):
        assert got.dtype == param.dtype
        np.testing.assert_allclose(in_complex(got), -0.5 * in_complex(param), rtol=1e-2)


def in_complex(leaf: Any) -> Any:
    return np.asarray(leaf).astype(np.complex128)


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(optax, "skip_not_finite"), reason="it came with optax 0.1.3")
@pytest.mark.parametrize("dtypes", one_of(2, [("bfloat16",), ("float32", "bfloat16")]), ids=str)
def test_without_jit_a_skipped_step_gives_zeros_in_the_dtypes_of_the_params(dtypes: Any) -> None:
    params = tree_of(*dtypes)
    tx = optax.MultiSteps(optax.sgd(0.5), 2, should_skip_update_fn=optax.skip_not_finite)
    state = tx.init(params)
    with jax.disable_jit():
        updates, _ = tx.update(tree_map(lambda leaf: leaf * np.nan, params), state, params)
    assert dtypes_of(updates) == dtypes_of(params)
    assert not any(map(np.any, leaves(in_float64(updates))))


def test_a_subclass_decides_how_it_is_copied() -> None:
    class Own(optax.MultiSteps):
        def __copy__(self) -> Any:
            return self

    tx = Own(optax.sgd(1.0), 2)
    before, params = dict(vars(tx)), {"w": jnp.ones(3)}
    jax.eval_shape(tx.update, params, tx.init(params), params)
    assert vars(tx) == before
