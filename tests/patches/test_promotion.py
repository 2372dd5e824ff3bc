from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

import optax_dtypefix
from optax_dtypefix._contract.x64 import x64
from support.contract import assert_keeps_the_contract
from support.moments import adam
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.trees import dtypes_of, leaves, tree_map, tree_of, types

if TYPE_CHECKING:
    from support.fuzzing import Draw


RELEASE = Version(optax.__version__)
NARROW = [name for name in ("bfloat16", "float16", "float8_e4m3fn") if hasattr(jnp, name)]
# optax 0.1.2 calls functions of jax by their deprecated names.
pytestmark = pytest.mark.filterwarnings(
    "ignore:jax.tree_:FutureWarning", "ignore:jax.numpy.DeviceArray:DeprecationWarning"
)


def fuzzed(draw: Draw) -> Any:
    return draw.of(
        lambda: optax.adafactor(
            draw.of(None, 0.1),
            momentum=draw.of(None, 0.9),
            min_dim_size_to_factor=draw.of(2, 128),
            multiply_by_parameter_scale=draw.of(True, False),
        ),
        lambda: optax.sm3(draw.number()),
        lambda: optax.noisy_sgd(draw.rate()),
        lambda: optax.radam(draw.rate()),
        lambda: optax.yogi(draw.rate()),
        lambda: optax.ema(0.9, debias=draw.of(True, False)),
        lambda: optax.add_noise(0.1, 0.5, 0),
        optax.centralize,
        *[lambda: optax.contrib.muon(draw.rate())] * (Version("0.2.5") <= RELEASE),
    )()


FUZZ = FuzzCase(fuzzed)
PROGRAMS = {
    "adafactor": Program(lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2)),
    "sm3": Program(lambda: optax.sm3(1e-2)),
    "centralize": Program(lambda: optax.chain(optax.centralize(), optax.sgd(0.1))),
}

NAMES = (
    *("scale_by_adam", "scale_by_adamax", "scale_by_amsgrad", "scale_by_belief", "scale_by_yogi"),
    *("scale_by_rms", "scale_by_rss", "scale_by_stddev", "scale_by_lion", "scale_by_novograd"),
    *("scale_by_radam", "scale_by_sm3", "scale_by_adadelta", "scale_by_adan"),
    *("scale_by_factored_rms", "scale_by_trust_ratio", "centralize"),
)
AVAILABLE = [name for name in NAMES if hasattr(optax, name)]


@pytest.mark.filterwarnings("ignore:optax.differentially_private_aggregate:DeprecationWarning")
def test_the_function_is_patched_under_its_deprecated_name() -> None:
    tx = optax.differentially_private_aggregate(1.0, 0.1, 0)
    params = tree_of("float32", "int32")
    batch = tree_map(lambda leaf: jnp.stack([leaf, leaf]), params)
    with jax.numpy_dtype_promotion("strict"):  # Stock raises.
        updates, _ = tx.update(batch, tx.init(params), params)
    assert {*dtypes_of(updates)} == {jnp.dtype(jnp.float32)}


DEPRECATED = [name for name, (_, f) in getattr(optax, "_deprecations", {}).items() if f is not None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", DEPRECATED)
def test_a_deprecated_name_is_the_function_of_that_name(name: str) -> None:
    assert getattr(optax, name).__name__ == optax._deprecations[name][1].__name__


def test_float_leaves_beside_an_integer_leaf_are_right() -> None:
    tx = optax.scale_by_adam()
    params = tree_of(jnp.float32, jnp.int32)
    state = tx.init(params)
    grads = [tree_of(jnp.float32, jnp.int32, seed=seed) for seed in range(5)]
    for grad in grads:
        updates, state = tx.update(grad, state, params)
    directions, _ = adam([np.asarray(grad["w"], np.float64) for grad in grads])
    np.testing.assert_allclose(updates["w"], directions[-1], rtol=1e-5)
    assert updates["b"].dtype == jnp.float32
    assert types(state) == types(tx.init(params))


def test_adam_in_float64_is_right_to_float64() -> None:
    with x64():
        tx, params = optax.scale_by_adam(), tree_of(jnp.float64)
        state, grads = tx.init(params), [tree_of(jnp.float64, seed=seed) for seed in range(5)]
        for grad in grads:
            updates, state = tx.update(grad, state, params)
        directions, _ = adam([np.asarray(grad["w"]) for grad in grads])
        assert updates["w"].dtype == jnp.float64
        np.testing.assert_allclose(updates["w"], directions[-1], rtol=1e-9)


def rectified_adam_in_numpy(grads: list[Any], *, b1: float = 0.9, b2: float = 0.999) -> Any:
    """Return the last direction of RAdam in float64 (Liu et al. 2020, algorithm 2)."""
    m = v = 0.0
    for grad in grads:
        m = b1 * m + (1 - b1) * grad
        v = b2 * v + (1 - b2) * grad**2
    t = len(grads)
    limit = 2 / (1 - b2) - 1
    rho = limit - 2 * t * b2**t / (1 - b2**t)
    m_hat = m / (1 - b1**t)
    if rho < 5:
        return m_hat
    r = np.sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho))
    return r * m_hat / (np.sqrt(v / (1 - b2**t)) + 1e-8)


@pytest.mark.parametrize("steps", [3, 12])
def test_radam_in_bfloat16_is_right(steps: int) -> None:
    tx = optax.scale_by_radam()
    params = tree_of(jnp.bfloat16)
    state = tx.init(params)
    grad = tree_of(jnp.bfloat16, seed=1)
    for _ in range(steps):
        updates, state = tx.update(grad, state, params)
    expected = rectified_adam_in_numpy([np.asarray(grad["w"], np.float64)] * steps)
    # bfloat16 moments lose 2 ** -9 in each step.
    np.testing.assert_allclose(np.asarray(updates["w"], np.float64), expected, rtol=0.05)


DECAYS: dict[str, tuple[Any, float]] = {
    "rms": (lambda decay: optax.scale_by_rms(decay(0.999)), 1 - 0.999**1500),
    "ema": (lambda decay: optax.ema(decay(0.999)), 1 - 0.999**1500),
    "trace": (lambda decay: optax.trace(decay(0.99)), 100 * (1 - 0.99**1500)),
}


@pytest.mark.parametrize("decay", one_of(2, [jnp.float32, np.float32]), ids=["JAX", "NumPy"])
@pytest.mark.parametrize(
    "dtype", one_of(2, [jnp.bfloat16, jnp.float16]), ids=["bfloat16", "float16"]
)
@pytest.mark.parametrize(("build", "exact"), DECAYS.values(), ids=DECAYS)
def test_beside_an_array_as_decay_moments_stay_and_do_not_stall(
    build: Any, exact: float, dtype: Any, decay: Any
) -> None:
    """On stock the first step promotes them."""
    tx, ones = build(decay), jnp.ones(64, dtype)
    noisy = jnp.asarray(1 + 0.1 * np.random.default_rng(0).normal(size=(1500, 64)), dtype)
    first = tx.init(ones)
    state, updates = jax.lax.scan(lambda s, g: tx.update(g, s, ones)[::-1], first, noisy)
    assert updates.dtype == dtype
    assert types(state) == types(first)
    moment = np.mean(np.asarray(leaves(state)[-1], float))
    np.testing.assert_allclose(moment, exact, rtol=0.06)  # Squares are 1 % larger.


@pytest.mark.skipif(Version("0.1.4") > RELEASE, reason="novograd came with optax 0.1.4")
def test_the_second_moment_of_novograd_does_not_stall_in_bfloat16() -> None:
    tx = optax.scale_by_novograd(b2=0.999)
    params = {"w": jnp.ones(16, jnp.bfloat16)}
    state = tx.init(params)
    assert state.nu["w"].dtype == jnp.float32

    def step(state: Any, _: None) -> Any:
        return tx.update(params, state, params)[1], None

    small = jax.tree_util.tree_map(lambda leaf: leaf * 0.5, params)
    state = tx.update(small, state, params)[1]  # nu = |g|^2 = 4
    state, _ = jax.jit(lambda state: jax.lax.scan(step, state, None, length=1000))(state)
    expected = 0.999**1000 * 4 + (1 - 0.999**1000) * 16
    np.testing.assert_allclose(state.nu["w"], expected, rtol=1e-3)


@pytest.mark.skipif(Version("0.1.4") > RELEASE, reason="novograd came with optax 0.1.4")
@pytest.mark.parametrize("dtype", one_of(3, NARROW))
def test_novograd_sums_the_squares_of_narrow_gradients_in_float32(dtype: str) -> None:
    tx, params = optax.scale_by_novograd(), jnp.zeros(1000, dtype)
    grads = jnp.full(1000, 1.0546875 if dtype == "bfloat16" else 14.0, dtype)
    updates, state = tx.update(grads, tx.init(params), params)
    g = np.asarray(grads, np.float64)
    np.testing.assert_allclose(state.nu, np.sum(g**2), rtol=1e-5)
    # A step of float8 is 1/8.
    np.testing.assert_allclose(np.asarray(updates, float), g / np.sqrt(np.sum(g**2)), rtol=0.07)


@pytest.mark.parametrize(
    "asked", one_of(4, [np.float32, np.float16, np.dtype("float32"), "float32"]), ids=str
)
def test_a_dtype_may_be_given_as_numpy_type(asked: Any) -> None:
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    for build in (
        lambda dtype: optax.adam(0.1, mu_dtype=dtype),
        lambda dtype: optax.sgd(0.1, momentum=0.9, accumulator_dtype=dtype),
        lambda dtype: optax.ema(0.9, accumulator_dtype=dtype),
        lambda dtype: optax.adafactor(0.1, momentum=0.9, dtype_momentum=dtype),
    ):
        got, expected = (
            tx.update(params, tx.init(params), params)
            for tx in map(build, (asked, jnp.dtype(asked)))
        )
        assert types(got) == types(expected)
        tree_map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize("attribute", [None, "float32", np.float32, jnp.float32], ids=str)
def test_a_schedule_may_have_an_attribute_that_is_called_dtype(attribute: Any) -> None:
    class Schedule:
        dtype = attribute

        def __call__(self, count: Any) -> float:
            del count
            return 0.1

    params = {"w": jnp.ones(3)}
    tx = optax.scale_by_schedule(Schedule())
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(updates["w"], 0.1, rtol=1e-6)


@pytest.mark.skipif(Version("0.1.8") > RELEASE, reason="it came with optax 0.1.8")
@pytest.mark.parametrize("dtype", one_of(2, ["bfloat16", "float16"]))
def test_scalars_of_distance_over_gradients_are_float32(dtype: Any) -> None:
    tx = optax.scale_by_distance_over_gradients()
    params = tree_of(dtype)
    state = tx.init(params)
    statistics = leaves((state.max_dist, state.grad_sum_of_squares))
    assert {leaf.dtype for leaf in statistics} == {jnp.dtype(jnp.float32)}
    assert_keeps_the_contract(tx, params)


@pytest.mark.skipif(Version("0.1.8") > RELEASE, reason="it came with optax 0.1.8")
def test_a_scalar_param_leaves_the_updates_of_distance_over_gradients_narrow() -> None:
    """Stock gives the 0-d leaf an update of another shape, (1,)."""
    tx = optax.scale_by_distance_over_gradients()
    for dtype in (jnp.bfloat16, jnp.float16):
        params = {**tree_of(dtype), "scalar": jnp.ones((), dtype)}
        updates, _ = tx.update(params, tx.init(params), params)
        assert {*dtypes_of(updates)} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(
    "build",
    [
        lambda: optax.scale(-1.0),
        lambda: optax.scale_by_schedule(lambda _: 0.1),
        lambda: optax.adam(0.1),
        lambda: optax.add_decayed_weights(0.1),
    ],
    ids=["scale", "scale_by_schedule", "adam", "add_decayed_weights"],
)
def test_a_leaf_keeps_its_dtype_beside_one_with_a_wider_gradient(build: Any) -> None:
    tx, params = build(), tree_of(jnp.float32, jnp.bfloat16)
    updates, _ = tx.update(tree_of(jnp.float32, jnp.bfloat16), tx.init(params), params)
    assert updates["b"].dtype == jnp.bfloat16
    params = tree_of(jnp.bfloat16, jnp.int32)
    updates, _ = tx.update(tree_of(jnp.float32, jnp.int32), tx.init(params), params)
    assert updates["w"].dtype == jnp.float32, "whose gradient is wider: stock's promotion stands"
    assert updates["b"].dtype in (jnp.float32, jnp.int32)


@pytest.mark.parametrize("frozen", ["float32", "bfloat16", "int32"])
def test_a_gradient_that_is_none_does_not_shift_the_others(frozen: str) -> None:
    """The state of a trainable param is the same, whatever is frozen beside it."""
    tx = optax.adam(0.1)
    for grad, param in ((jnp.float32, jnp.bfloat16), (jnp.bfloat16, jnp.bfloat16)):
        grads, trainable = tree_of(grad)["w"], tree_of(param)["w"]
        _, alone = tx.update({"b": grads}, tx.init({"b": trainable}), {"b": trainable})
        state = tx.init({"a": None, "b": trainable})
        params = {"a": jnp.ones(2, frozen), "b": trainable}
        _, beside = tx.update({"a": None, "b": grads}, state, params)
        assert dtypes_of(beside) == dtypes_of(alone)
        for leaf, other in zip(leaves(beside), leaves(alone)):
            np.testing.assert_array_equal(np.asarray(leaf), np.asarray(other))


@pytest.mark.parametrize("name", [name for name in AVAILABLE if name != "centralize"])
@pytest.mark.parametrize("grads", one_of(3, ["bfloat16", "float16", "int8"]))
def test_narrow_gradients_of_float32_params_get_float32_updates(name: str, grads: str) -> None:
    """Compare with the same step with the same gradients in float32."""
    tx, params = getattr(optax, name)(), tree_of("float32")
    narrow = tree_map(lambda leaf: (3 * leaf).astype(grads), tree_of("float32", seed=1))
    got, _ = tx.update(narrow, tx.init(params), params)
    wide = tree_map(lambda leaf: leaf.astype(jnp.float32), narrow)
    expected, _ = tx.update(wide, tx.init(params), params)
    # Some of stock's squares are computed in the dtype of the gradient.
    tolerance = {"bfloat16": 0.02, "float16": 0.002, "int8": 1e-6}[grads]
    for leaf, other in zip(leaves(got), leaves(expected)):
        assert leaf.dtype == jnp.float32
        np.testing.assert_allclose(leaf, other, rtol=tolerance, atol=tolerance)


def test_a_small_weight_decay_survives_a_float32_momentum() -> None:
    """1e-6 of the param is less than half a unit of the update in bfloat16."""
    params, grads = tree_of("bfloat16"), tree_of("bfloat16", seed=1)

    def updates(decay: float) -> Any:
        tx = optax.adamw(1.0, mu_dtype=jnp.float32, weight_decay=decay)
        return tx.update(grads, tx.init(params), params)[0]

    decayed, plain = updates(1e-6), updates(0.0)
    for name, leaf in decayed.items():
        assert leaf.dtype == jnp.float32
        assert np.any(np.asarray(leaf) != np.asarray(plain[name]))


@pytest.mark.parametrize("dtype", one_of(2, ["int32", "int8"]))
def test_the_mean_of_integers_is_a_float(dtype: str) -> None:
    tx, metric = optax.ema(0.9), {"a": jnp.asarray(7, dtype)}
    state = tx.init(metric)
    for _ in range(100):
        updates, state = tx.update(metric, state)
    np.testing.assert_allclose(updates["a"], 7, rtol=1e-5)


def test_integer_gradients_without_params_are_scaled() -> None:
    tx = optax.sgd(0.1)
    signs = {"w": jnp.asarray([1, -1], jnp.int8)}
    updates, _ = tx.update(signs, tx.init({"w": jnp.ones(2)}))
    np.testing.assert_allclose(updates["w"], [-0.1, 0.1], rtol=1e-6)


@pytest.mark.parametrize(
    "build",
    [optax.centralize, lambda: optax.clip(5), lambda: optax.apply_every(2)],
    ids=["centralize", "clip", "apply_every"],
)
def test_integers_stay_integers_where_stock_keeps_them(build: Any) -> None:
    """2^24 + 1 is no float32 number."""
    grads = {"w": jnp.asarray([2**24 + 1, 3], jnp.int32)}

    def second_updates() -> Any:
        tx = build()
        _, state = tx.update(grads, tx.init(grads), grads)
        return tx.update(grads, state, grads)[0]["w"]

    with optax_dtypefix.disabled():
        stock = second_updates()
    assert second_updates().dtype == stock.dtype == jnp.int32
    np.testing.assert_array_equal(second_updates(), stock)


def mean_of(start: Any) -> Any:
    """Return a transformation with the mean of the gradients, one number, in its state."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        mean = sum(jnp.mean(leaf) for leaf in leaves(grads)) / len(leaves(grads))
        return grads, 0.5 * state + mean

    return optax.GradientTransformation(lambda _: start, update)


def test_a_state_that_starts_real_keeps_an_imaginary_part() -> None:
    tx, params = optax.flatten(mean_of(jnp.zeros([]))), {"w": jnp.full(4, 1 + 2j, jnp.complex64)}
    state = tx.init(params)
    for _ in range(2):
        _, state = tx.update(params, state, params)
    assert any(np.allclose(leaf, 1.5 + 3j) for leaf in leaves(state))


@pytest.mark.skipif(Version("0.1.8") > RELEASE, reason="it came with optax 0.1.8")
@pytest.mark.parametrize("dtype", one_of(2, [jnp.float32, jnp.bfloat16], 1))
def test_an_update_is_as_wide_as_the_moment_of_the_wrapped_optimizer(dtype: Any) -> None:
    params = tree_of(jnp.bfloat16)
    tx = optax.contrib.split_real_and_imaginary(optax.adam(0.1, mu_dtype=dtype))
    updates, _ = tx.update(params, tx.init(params), params)
    assert {*dtypes_of(updates)} == {jnp.dtype(dtype)}


@pytest.mark.parametrize("asked", one_of(2, [jnp.float32, jnp.bfloat16], 1))
def test_the_momentum_of_adafactor_widens_updates_only_where_its_dtype_is_asked_for(
    asked: Any,
) -> None:
    params = tree_of(jnp.bfloat16)
    by_default = optax.adafactor(0.1, momentum=0.9)
    by_request = optax.adafactor(0.1, momentum=0.9, dtype_momentum=asked)
    updates = [tx.update(params, tx.init(params), params)[0] for tx in (by_default, by_request)]
    assert {*dtypes_of(updates[0])} == {jnp.dtype(jnp.bfloat16)}
    assert {*dtypes_of(updates[1])} == {jnp.dtype(asked)}
    assert jnp.float32 in dtypes_of(by_default.init(params))  # Stock's default for the state.


@pytest.mark.parametrize("asked", one_of(2, [None, jnp.float32]))
def test_inject_hyperparams_does_not_ask_for_the_default_dtype(asked: Any) -> None:
    params, request = tree_of(jnp.bfloat16), {} if asked is None else {"dtype_momentum": asked}
    static = ("min_dim_size_to_factor", "dtype_momentum")
    tx = optax.inject_hyperparams(optax.adafactor, static)(0.1, momentum=0.9, **request)
    updates, _ = tx.update(params, tx.init(params), params)
    assert {*dtypes_of(updates)} == {jnp.dtype(asked or jnp.bfloat16)}


@pytest.mark.parametrize("grads", one_of(2, ["bfloat16", "float32"]))
def test_flatten_without_params_gives_the_dtypes_of_stock(grads: str) -> None:
    """float32 params with half-precision gradients, and the other way round: stock's float32."""
    other = "float32" if grads == "bfloat16" else "bfloat16"
    tx = optax.flatten(optax.trace(0.9))
    state = first = tx.init(tree_of(other))
    for _ in range(2):
        updates, state = tx.update(tree_of(grads), state)
    assert {*dtypes_of(updates)} == {jnp.dtype(jnp.float32)}
    assert types(state) == types(first)


@pytest.mark.parametrize("with_params", [True, False])
def test_flatten_takes_no_dtype_from_a_random_key(with_params: bool) -> None:
    """A key has two numbers, as many as the param here, but it is no moment."""
    inner = optax.GradientTransformation(
        lambda _: jnp.zeros(2, jnp.uint32), lambda updates, state, *_: (updates, state)
    )
    tx, params = optax.flatten(inner), {"w": jnp.ones(2, jnp.bfloat16)}
    updates, _ = tx.update(params, tx.init(params), params if with_params else None)
    assert dtypes_of(updates) == [jnp.bfloat16]


SCHEDULES = {
    "cosine": lambda: optax.cosine_decay_schedule(0.1, 10),
    "linear": lambda: optax.linear_schedule(0.1, 0.2, 10),
    "exponential": lambda: optax.exponential_decay(0.1, 10, 0.5),
    "piecewise": lambda: optax.piecewise_constant_schedule(0.1, {2: 0.5}),
    "one cycle": lambda: optax.cosine_onecycle_schedule(10, 0.1),
    "warm-up": lambda: optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10),
    "join": lambda: optax.join_schedules([optax.constant_schedule(0.1)] * 2, [2]),
    "sgdr": lambda: optax.sgdr_schedule(
        [{"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 2, "decay_steps": 4}] * 2
    ),
}


@pytest.mark.parametrize("build", one_of(2, SCHEDULES.values()), ids=SCHEDULES)
def test_schedules_of_optax_accept_strict_promotion(build: Any) -> None:
    schedule, count = build(), jnp.asarray(3, jnp.int32)
    expected = schedule(count)
    tx, params = optax.adamw(schedule), tree_of("float32")
    with jax.numpy_dtype_promotion("strict"):
        assert schedule(count) == expected
        tx.update(params, tx.init(params), params)


def test_a_schedule_can_be_copied_and_keeps_its_name() -> None:
    schedule = optax.cosine_decay_schedule(0.1, 10)
    assert copy.deepcopy(schedule) is schedule
    stock = optax_dtypefix.original(optax.cosine_decay_schedule)(0.1, 10)
    assert schedule.__qualname__ == stock.__qualname__
    assert inspect.signature(schedule) == inspect.signature(stock)


RESTORED = {
    "momentum": lambda: optax.sgd(1.0, momentum=0.9),
    "ema": lambda: optax.ema(0.99),
    "adagrad": lambda: optax.adagrad(1.0),
    "yogi": lambda: optax.yogi(1.0),
    "masked": lambda: optax.masked(optax.sgd(1.0, momentum=0.9), True),
}


@pytest.mark.parametrize("build", RESTORED.values(), ids=RESTORED)
def test_a_state_narrower_than_its_problem_stays_and_does_not_stall(build: Any) -> None:
    """A bfloat16 checkpoint that is continued in float32: ``migrate_state`` widens it."""
    gradients = jnp.asarray(1 + 0.3 * np.random.default_rng(0).normal(size=(500, 32)), jnp.float32)
    params, tx = jnp.ones(32, jnp.float32), build()
    narrow, new = tx.init(params.astype(jnp.bfloat16)), tx.init(params)

    def step(state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return state, updates

    after, updates = jax.lax.scan(step, narrow, gradients)
    assert types(after) == types(narrow)
    assert updates.dtype == jnp.float32
    _, exact = jax.lax.scan(step, new, gradients)
    np.testing.assert_allclose(updates[-1], exact[-1], rtol=0.05)


def test_a_moment_that_the_user_asked_for_does_not_grow() -> None:
    tx, params = optax.scale_by_adam(mu_dtype=jnp.bfloat16), jnp.ones(3)
    _, state = tx.update(params, tx.init(params), params)
    assert state.mu.dtype == jnp.bfloat16


def test_a_dtype_that_galore_is_asked_for_inside_does_not_reach_its_updates() -> None:
    """Stock casts them to the dtype of the gradients."""
    if not hasattr(getattr(optax, "contrib", None), "galore"):
        assert Version(optax.__version__) < Version("0.2.7")
        pytest.skip("galore came with optax 0.2.7")
    params = jnp.ones((8, 6), jnp.bfloat16)
    tx = optax.contrib.galore(1e-2, rank=2, base_optimizer=optax.scale_by_adam(mu_dtype="float32"))
    updates, state = tx.update(params, tx.init(params), params)
    assert updates.dtype == jnp.bfloat16
    assert optax.tree.get(state, "mu").dtype == jnp.float32
