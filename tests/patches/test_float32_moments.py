from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

import optax_dtypefix
from optax_dtypefix._contract.moments import moments as moments_of
from optax_dtypefix._contract.x64 import x64
from support import moments
from support.builders import builders
from support.contract import assert_keeps_the_contract
from support.patch_cases import FuzzCase, Program
from support.trees import dtypes_of, in_float64, leaves, tree_map, tree_of, types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fuzzing import Draw
    from support.moments import MomentTransform


# Old releases call deprecated functions of JAX.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

contrib = getattr(optax, "contrib", None)


def fuzzed(draw: Draw) -> Any:
    return draw.of(
        lambda: draw.call(optax, OPTIMIZERS, draw.rate()),
        lambda: optax.ema(draw.of(0.9, 0.999)),
        lambda: optax.trace(0.9, nesterov=draw.of(True, False)),
        lambda: optax.apply_every(draw.of(1, 2)),
        lambda: optax.sgd(draw.rate(), momentum=0.9),
    )()


OPTIMIZERS = "adam adamw amsgrad nadam radam rmsprop adafactor yogi"
FUZZ = FuzzCase(fuzzed)
PROGRAMS = {
    "adam": Program(lambda: optax.adam(1e-2)),
    "adam with mu_dtype": Program(lambda: optax.adam(1e-2, mu_dtype=jnp.float32)),
    "rmsprop centered": Program(lambda: optax.rmsprop(1e-2, centered=True)),
    "adafactor": Program(lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2)),
    "ema": Program(lambda: optax.ema(0.9)),
    "momentum": Program(lambda: optax.sgd(1e-2, momentum=0.9)),
    "apply_every": Program(lambda: optax.apply_every(2)),
}

NEED_PARAMS = ("scale_by_cocob", "scale_by_factored_rms", "scale_by_madgrad", "scale_by_novograd")

WRAPPED = builders("float32_moments")
by_some_transforms = moments.parametrize([t for t in moments.SIMPLE if t.name in WRAPPED], 4)


@pytest.fixture(autouse=True, scope="module")
def asked_for() -> Iterator[None]:
    assert not optax_dtypefix.is_applied("float32_moments")
    optax_dtypefix.apply("float32_moments")
    yield
    optax_dtypefix.revert("float32_moments")


def run(tx: Any, gradients: Any, dtype: Any, asked: Any = None) -> tuple[Any, Any]:
    """Run a step for each gradient. Return the updates, in float64, and the last state."""
    gradients = jnp.asarray(gradients, dtype)
    params = jnp.ones_like(gradients[0])

    def step(state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return state, updates

    scan = jax.jit(lambda g: jax.lax.scan(step, tx.init(params), g))
    state, updates = scan(gradients)
    assert updates.dtype == (asked or dtype)
    return in_float64(updates), state


def numbers(size: float, steps: int, dtype: Any, mean: float = 0.0) -> Any:
    """Return random gradients, rounded to the dtype, in float64."""
    normal = mean + np.random.default_rng(0).normal(size=(steps, 4, 4))
    return np.asarray(jnp.asarray(size * normal, dtype)).astype(float)


HALVES = pytest.mark.parametrize(
    ("dtype", "precision"), [(jnp.bfloat16, 2**-8), (jnp.float16, 2**-11)]
)


@HALVES
def test_adam_with_steady_gradients_does_not_stall(dtype: Any, precision: float) -> None:
    gradients = np.ones((5000, 1, 1))
    updates, state = run(optax.scale_by_adam(mu_dtype=jnp.float32), gradients, dtype, jnp.float32)
    exact, moment = moments.adam(gradients)
    assert state.nu.dtype == jnp.float32
    np.testing.assert_allclose(state.nu, moment, rtol=1e-4)
    np.testing.assert_allclose(updates, exact, rtol=precision)


@HALVES
@pytest.mark.parametrize("size", [1e-4, 1.0, 1000.0])
def test_adam_follows_float64(size: float, dtype: Any, precision: float) -> None:
    """Some squares underflow or overflow in float16."""
    gradients = numbers(size, 300, dtype)
    updates, state = run(optax.scale_by_adam(mu_dtype=jnp.float32), gradients, dtype, jnp.float32)
    exact, moment = moments.adam(gradients)
    np.testing.assert_allclose(state.nu, moment, rtol=1e-4)
    np.testing.assert_allclose(updates, exact, rtol=2 * precision, atol=2 * precision)


@pytest.mark.skipif(
    Version(optax.__version__) < Version("0.1.4"), reason="amsgrad came with optax 0.1.4"
)
@HALVES
def test_amsgrad_follows_float64(dtype: Any, precision: float) -> None:
    gradients = numbers(1.0, 300, dtype)
    tx = optax.scale_by_amsgrad(mu_dtype=jnp.float32)
    updates, state = run(tx, gradients, dtype, jnp.float32)
    m = v = largest = np.zeros_like(gradients[0])
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        largest = np.maximum(largest, v / (1 - 0.999**t))
        exact = m / (1 - 0.9**t) / (np.sqrt(largest) + 1e-8)
    np.testing.assert_allclose(state.nu_max, largest, rtol=1e-4)
    np.testing.assert_allclose(updates[-1], exact, rtol=2 * precision, atol=precision)


@HALVES
def test_rmsprop_follows_float64(dtype: Any, precision: float) -> None:
    gradients = numbers(1.0, 300, dtype)
    for build_tx, centered in ((optax.scale_by_rms, 0), (optax.scale_by_stddev, 1)):
        updates, _ = run(build_tx(decay=0.999), gradients, dtype)
        m = v = np.zeros_like(gradients[0])
        for g in gradients:
            m, v = 0.999 * m + 0.001 * g, 0.999 * v + 0.001 * g**2
            exact = g / np.sqrt(v - centered * m**2 + 1e-8)
        np.testing.assert_allclose(updates[-1], exact, rtol=2 * precision)


@HALVES
def test_adagrad_follows_float64(dtype: Any, precision: float) -> None:
    gradients = numbers(1.0, 1000, dtype)
    updates, state = run(optax.scale_by_rss(), gradients, dtype)
    total = 0.1 + (gradients**2).sum(0)
    np.testing.assert_allclose(state.sum_of_squares, total, rtol=1e-4)
    np.testing.assert_allclose(updates[-1], gradients[-1] / np.sqrt(total), rtol=2 * precision)


@HALVES
def test_adafactor_follows_float64(dtype: Any, precision: float) -> None:
    gradients = numbers(1.0, 1000, dtype)
    updates, state = run(optax.scale_by_factored_rms(min_dim_size_to_factor=2), gradients, dtype)
    rows, columns = np.zeros(4), np.zeros(4)
    for t, g in enumerate(gradients, 1):
        decay = 1 - t**-0.8
        rows = decay * rows + (1 - decay) * (g**2).mean(1)
        columns = decay * columns + (1 - decay) * (g**2).mean(0)
    moment = rows[:, None] * columns / rows.mean()
    assert state.v_row.dtype == state.v_col.dtype == jnp.float32
    np.testing.assert_allclose(np.sort(state.v_row), np.sort(rows), rtol=1e-3)
    np.testing.assert_allclose(updates[-1], gradients[-1] / np.sqrt(moment), rtol=2 * precision)


@HALVES
def test_ema_follows_float64(dtype: Any, precision: float) -> None:
    gradients = numbers(1.0, 1000, dtype, mean=1.0)
    updates, state = run(optax.ema(0.999), gradients, dtype)
    average = np.zeros((4, 4))
    for grad in gradients:
        average = 0.999 * average + 0.001 * grad
    assert state.ema.dtype == jnp.float32
    np.testing.assert_allclose(state.ema, average, rtol=1e-4)
    np.testing.assert_allclose(updates[-1], average / (1 - 0.999**1000), rtol=precision)


@HALVES
@pytest.mark.parametrize("nesterov", [False, True])
def test_trace_follows_float64(dtype: Any, precision: float, nesterov: bool) -> None:
    gradients = numbers(1.0, 1000, dtype, mean=1.0)
    updates, state = run(optax.trace(0.999, nesterov=nesterov), gradients, dtype)
    total = np.zeros((4, 4))
    for grad in gradients:
        total = 0.999 * total + grad
    assert state.trace.dtype == jnp.float32
    np.testing.assert_allclose(state.trace, total, rtol=1e-4)
    exact = 0.999 * total + grad if nesterov else total
    np.testing.assert_allclose(updates[-1], exact, rtol=precision)


@HALVES
def test_apply_every_follows_float64(dtype: Any, precision: float) -> None:
    gradients = numbers(1.0, 1000, dtype, mean=1.0)
    updates, state = run(optax.apply_every(1000), gradients, dtype)
    assert state.grad_acc.dtype == jnp.float32
    np.testing.assert_allclose(updates[-1], gradients.sum(axis=0), rtol=precision)
    np.testing.assert_array_equal(updates[:-1], 0)


@pytest.mark.skipif(
    Version(optax.__version__) < Version("0.1.4"), reason="lion came with optax 0.1.4"
)
@HALVES
def test_lion_follows_float64(dtype: Any, precision: float) -> None:
    del precision
    gradients = numbers(1.0, 300, dtype, mean=1.0)
    _, state = run(optax.scale_by_lion(), gradients, dtype)
    moment = np.zeros((4, 4))
    for grad in gradients:
        moment = 0.99 * moment + 0.01 * grad
    np.testing.assert_allclose(state.mu, moment, rtol=1e-4)


def test_it_wraps_what_has_moments() -> None:
    assert {*WRAPPED} == {*builders("bfloat16_moments")}


@by_some_transforms
def test_keeps_the_contract_with_moments_in_float32(transform: MomentTransform) -> None:
    tx, params = moments.build(transform), tree_of(jnp.bfloat16, jnp.float16)
    assert_keeps_the_contract(tx, params)
    optax_dtypefix.check(tx, params).raise_if_broken()  # ``check`` accepts wider moments.
    state = tx.init(params)
    for name in moments_of(type(state)):
        assert {*dtypes_of(getattr(state, name))} == {np.dtype(np.float32)}
    assert moments_of(type(state))


@by_some_transforms
def test_an_update_is_as_wide_as_gradient_and_param(transform: MomentTransform) -> None:
    for params, grads in (
        (tree_of(jnp.bfloat16), tree_of(jnp.float32)),
        (tree_of(jnp.float32), tree_of(jnp.bfloat16)),
    ):
        tx = moments.build(transform)
        updates, _ = tx.update(grads, tx.init(params), params)
        assert types(updates) == types(tree_of(jnp.float32))


def test_float64_stays_float64() -> None:
    with x64():
        params = tree_of(jnp.float64, jnp.bfloat16)
        tx = optax.scale_by_adam()
        assert_keeps_the_contract(tx, params)
        assert tx.init(params).nu["w"].dtype == jnp.float64


@pytest.mark.skipif(not hasattr(contrib, "sophia"), reason="sophia came with optax 0.2.5")
def test_sophia_keeps_the_contract() -> None:
    seen = []

    def objective(params: Any) -> Any:
        seen.extend(leaf.dtype for leaf in leaves(params))
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves(params))

    tx = sys.modules["optax.contrib._sophia"].scale_by_sophia()
    params = tree_of(jnp.bfloat16)
    assert_keeps_the_contract(tx, params, extra=lambda _: {"obj_fn": objective})
    assert tx.init(params).nu["w"].dtype == jnp.float32
    assert set(seen) == {np.dtype(jnp.bfloat16)}


@HALVES
def test_a_moment_restored_from_stock_keeps_its_dtype(dtype: Any, precision: float) -> None:
    tx, params = optax.scale_by_adam(), tree_of(dtype)
    state = tx.init(params)
    narrow = [tree_map(lambda leaf: leaf.astype(dtype), tree) for tree in (state.mu, state.nu)]
    restored = state._replace(mu=narrow[0], nu=narrow[1])
    for _ in range(2):
        updates, restored = jax.jit(tx.update)(params, restored, params)
        assert {*dtypes_of((restored.mu, restored.nu))} == {np.dtype(dtype)}
        assert {*dtypes_of(updates)} == {np.dtype(dtype)}
    # Compare to the last place, and to the smallest number that float16 has.
    expected = (1 - 0.999**2) * np.asarray(params["w"]).astype(float) ** 2
    got = np.asarray(restored.nu["w"]).astype(float)
    np.testing.assert_allclose(got, expected, rtol=2 * precision, atol=2.0**-23)


def test_gradients_may_be_wider_or_narrower_than_params() -> None:
    wide, narrow = tree_of(jnp.float32), tree_of(jnp.bfloat16)
    for params, grads in ((narrow, wide), (wide, narrow)):
        tx = optax.scale_by_adam()
        updates, state = tx.update(grads, tx.init(params), params)
        assert types(updates) == types(wide)
        assert {*dtypes_of((state.mu, state.nu))} == {np.dtype(np.float32)}


def test_a_dtype_that_the_user_chose_is_kept() -> None:
    params, narrow = tree_of(jnp.bfloat16), {jnp.dtype(jnp.bfloat16)}
    for tx, field in (
        (optax.ema(0.9, accumulator_dtype=jnp.bfloat16), "ema"),
        (optax.trace(0.9, accumulator_dtype=jnp.bfloat16), "trace"),
        (optax.scale_by_adam(mu_dtype=jnp.bfloat16), "mu"),
    ):
        state = tx.init(params)
        _, after = tx.update(params, state, params)
        assert {*dtypes_of(getattr(state, field))} == {*dtypes_of(getattr(after, field))} == narrow
    assert {*dtypes_of(state.nu)} == {jnp.dtype(jnp.float32)}


def dtypes_of_moments(state: Any) -> set[Any]:
    """Return the dtypes of all second moments of Adam in a state."""
    is_adam = lambda node: isinstance(node, optax.ScaleByAdamState)  # noqa: E731
    nodes = jax.tree_util.tree_leaves(state, is_leaf=is_adam)
    return {leaf.dtype for node in nodes if is_adam(node) for leaf in leaves(node.nu)}


LABELS = {"w": "a", "b": "b"}
BUILDS: dict[str, Callable[[], Any]] = {
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(0.1),
    "mu_dtype": lambda: optax.adam(0.1, mu_dtype=jnp.bfloat16),
    "masked": lambda: optax.masked(optax.adam(0.1), {"w": True, "b": False}),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1)),
    "lamb": lambda: optax.lamb(0.1),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.1), 2),
    "multi_transform": lambda: optax.multi_transform(
        {"a": optax.adam(0.1), "b": optax.sgd(0.1)}, LABELS
    ),
}


@pytest.mark.parametrize("build_tx", BUILDS.values(), ids=BUILDS.keys())
def test_wrapped_optimizers_have_float32_moments(build_tx: Callable[[], Any]) -> None:
    tx, params = build_tx(), tree_of(jnp.bfloat16)
    assert_keeps_the_contract(tx, params)
    assert dtypes_of_moments(tx.init(params)) == {np.dtype(np.float32)}


def test_momentum_of_sgd_is_float32() -> None:
    params = tree_of(jnp.bfloat16)
    tx = optax.sgd(0.1, momentum=0.99)
    assert {*dtypes_of(tx.init(params))} >= {jnp.dtype(jnp.float32)}


@pytest.mark.skipif(not hasattr(contrib, "muon"), reason="muon came with optax 0.2.5")
def test_momentum_of_muon_is_float32() -> None:
    params = tree_of(jnp.bfloat16)
    tx = contrib.muon(0.1)
    assert_keeps_the_contract(tx, params)
    assert jnp.bfloat16 not in dtypes_of(tx.init(params))


def test_without_the_patch_moments_are_narrow() -> None:
    params = tree_of(jnp.bfloat16)
    with optax_dtypefix.disabled("float32_moments"):
        assert optax.scale_by_adam().init(params).nu["w"].dtype == jnp.bfloat16
    assert optax.scale_by_adam().init(params).nu["w"].dtype == jnp.float32


def test_a_first_moment_in_float32_gives_float32_updates_as_on_stock() -> None:
    params = tree_of(jnp.bfloat16)
    tx = optax.adam(0.1, mu_dtype=jnp.float32)
    updates, _ = tx.update(params, tx.init(params), params)
    assert {*dtypes_of(updates)} == {np.dtype(np.float32)}


@by_some_transforms
def test_without_params_updates_are_as_wide_as_on_stock(transform: MomentTransform) -> None:
    for params in map(tree_of, (jnp.bfloat16, jnp.float32)):
        if transform.name not in NEED_PARAMS:
            tx = moments.build(transform)
            updates, _ = jax.jit(tx.update)(params, tx.init(params))
            assert types(updates) == types(params)


@pytest.mark.parametrize("name", ["ema", "trace", "apply_every", "scale_by_adam"])
def test_without_params_gradients_stand_in_for_them(name: str) -> None:
    """The state is float32 for any params, so it does not tell."""
    (transform,) = (transform for transform in moments.SIMPLE if transform.name == name)
    tx, grads = moments.build(transform), tree_of(jnp.bfloat16)
    updates, _ = jax.jit(tx.update)(grads, tx.init(tree_of(jnp.float32)))
    assert types(updates) == types(grads)


def test_without_params_a_moment_of_a_chosen_dtype_sets_that_of_updates() -> None:
    tx, grads = optax.adam(0.1, mu_dtype=jnp.float32), tree_of(jnp.bfloat16)
    updates, _ = tx.update(grads, tx.init(grads))
    assert {*dtypes_of(updates)} == {np.dtype(np.float32)}
