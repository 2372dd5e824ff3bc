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
from evidence.rounding import measure
from optax_dtypefix._contract.x64 import x64
from support import moments
from support.contract import assert_keeps_the_contract
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.trees import dtypes_of, in_float64, leaves, tree_map, tree_of

if TYPE_CHECKING:
    from support.fuzzing import Draw
    from support.moments import MomentTransform


# Old releases call deprecated functions of JAX.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

contrib = getattr(optax, "contrib", None)


def fuzzed(draw: Draw) -> Any:
    return draw.call(
        optax,
        "adam adamw adamax amsgrad nadam radam rmsprop novograd adabelief adan yogi lamb adagrad",
        draw.rate(),
    )


FUZZ = FuzzCase(fuzzed)
PROGRAMS = {  # Other dtypes than float16.
    "adam": Program(lambda: optax.adam(1e-2)),
    "adam bfloat16": Program(lambda: optax.adam(1e-2), jnp.bfloat16),
    "adam complex": Program(lambda: optax.adam(1e-2), jnp.complex64),
    "adabelief bfloat16": Program(lambda: optax.adabelief(1e-2), jnp.bfloat16),
    "yogi": Program(lambda: optax.yogi(1e-2)),
    "adagrad bfloat16": Program(lambda: optax.adagrad(1e-2), jnp.bfloat16),
    "rmsprop centered": Program(lambda: optax.rmsprop(1e-2, centered=True)),
    "sm3": Program(lambda: optax.sm3(1e-2)),
    "adafactor": Program(lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2)),
    "muon": Program(lambda: contrib.muon(1e-2), releases=">=0.2.5"),
    "ademamix bfloat16": Program(lambda: contrib.ademamix(1e-2), jnp.bfloat16, ">=0.2.5"),
    "adam float16": Program(lambda: optax.adam(1e-3), jnp.float16, same="state"),
    "adafactor float16": Program(
        lambda: optax.adafactor(1e-3, min_dim_size_to_factor=2), jnp.float16, same="state"
    ),
}

TINY, HUGE = 2.0**-24, 65504.0  # The smallest number above zero in float16, and the largest.
by_some_transforms = moments.parametrize(moments.SIMPLE, 4)


def by_name(name: str) -> Any:
    return getattr(optax, name, None) or getattr(contrib, name, None)


def runner(tx: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return a function that runs one step for each gradient.

    The function returns the updates, in float64, and the last state.
    """
    params = jnp.ones((3, 4), jnp.float16)

    @jax.jit
    def step(grads: Any, state: Any) -> Any:
        return tx.update(grads, state, params)

    def run(gradients: Any) -> tuple[Any, Any]:
        updates, state = [], tx.init(params)
        for gradient in gradients:
            update, state = step(np.broadcast_to(np.asarray(gradient, np.float16), (3, 4)), state)
            updates.append(in_float64(update))
        return np.stack(updates), state

    return run


def run(tx: Any, gradients: Any) -> tuple[Any, Any]:
    return runner(tx)(gradients)


def rounded(value: Any) -> Any:
    """Round a value to float16, and return the result in float64."""
    return np.asarray(value, np.float16).astype(np.float64)


GRADIENTS = {
    "zero": [0.0] * 6,
    "tiny": [1e-4] * 6,
    "tiniest": [1e-7] * 6,
    "mixed": [1e-4, 0.0, 1.0, -1e-7, 300.0, 0.0, 1e-3, 1.0],
    "fading": [1.0, 1e-2, 1e-4, 1e-6, 0.0, 0.0, 0.0],
    "large": [300.0, -6e4, 6e4, 1.0, 0.0, 300.0],
}


@by_some_transforms
def test_updates_and_states_are_finite(transform: MomentTransform) -> None:
    signs = np.asarray([1.0, -1.0, 1.0, 0.5])
    step = runner(moments.build(transform))
    for name, gradients in GRADIENTS.items():
        updates, state = step([gradient * signs for gradient in gradients])
        assert np.isfinite(updates).all(), name
        assert all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves(state)), name


OPTIMIZERS = (
    *("adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw"),
    *("adan", "amsgrad", "lamb", "nadam", "nadamw", "novograd", "optimistic_adam_v2", "radam"),
    *("rmsprop", "sm3", "yogi", "acprop", "ademamix", "adopt", "cocob", "galore", "madgrad"),
    *("muon", "simplified_ademamix"),
)
OPTIMIZERS = tuple(name for name in OPTIMIZERS if by_name(name))


@pytest.mark.rule("C4")
@pytest.mark.parametrize("name", one_of(4, OPTIMIZERS))
def test_updates_of_optimizers_are_finite(name: str) -> None:
    tx = by_name(name)(**({} if name == "cocob" else {"learning_rate": 0.1}))
    updates, _ = run(tx, [0.0, 0.0, 1e-4, 1e-4])
    assert np.isfinite(updates).all()


def firsts(g: Any) -> dict[str, Any]:
    """Return the first update of each transformation in float64, from the papers."""
    return {
        "scale_by_adam": g / (np.abs(g) + 1e-8),
        "scale_by_amsgrad": g / (np.abs(g) + 1e-8),
        "scale_by_adamax": g / (np.abs(g) + 1e-8),
        "scale_by_rms": g / np.sqrt(0.1 * g**2 + 1e-8),
        "scale_by_stddev": g / np.sqrt(0.1 * g**2 - (0.1 * g) ** 2 + 1e-8),
        "scale_by_rss": g / np.sqrt(rounded(0.1) + g**2 + 1e-7),
        "scale_by_sm3": 0.1 * np.where(g == 0, 0, g / np.sqrt(g**2 + 1e-8)),
        "scale_by_novograd": g / (np.sqrt((g**2).sum()) + 1e-8),
        "scale_by_factored_rms": g / np.sqrt(g**2 + 1e-30),
        "scale_by_adadelta": np.sqrt(1e-6) / np.sqrt(0.1 * g**2 + 1e-6) * g,
        "scale_by_adan": g / (np.abs(g) + 1e-8),
        "scale_by_acprop": g / (1 + 1e-16),
        "scale_by_ademamix": (1 + 6 * 1e-4) * g / (np.abs(g) + 1e-8),
        "scale_by_simplified_ademamix": g / (np.abs(g) + 1e-8),
    }


@pytest.mark.parametrize("name", [name for name in firsts(np.ones(1)) if by_name(name)])
def test_the_first_update_is_exact(name: str) -> None:
    step = runner(by_name(name)())
    for size in (0.0, 1e-7, 1e-4, 1e-2, 1.0, 300.0, 3e4):
        g = rounded(size * np.linspace(-2, 2, 12).reshape(3, 4))
        (update,), _ = step([g])
        # Below 6e-5 float16 has only multiples of the smallest number.
        np.testing.assert_allclose(update, firsts(g)[name], rtol=2e-3, atol=TINY)


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_adam_follows_the_paper_to_the_rounding_of_its_state(size: float) -> None:
    random = np.random.default_rng(0)
    gradients = rounded(size * random.normal(size=(60, 3, 4)))
    updates, _ = run(optax.scale_by_adam(), gradients)
    # With gradients of 0.1 the moments are below 6e-5 for some steps.
    np.testing.assert_allclose(updates, moments.adam(gradients)[0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("size", [1e-6, 1e-5, 1e-4, 1e-3, 5e-3, 1e-2])
@pytest.mark.parametrize("b2", one_of(2, [0.9, 0.999], 1))
def test_a_tiny_second_moment_does_not_enlarge_an_update(size: float, b2: float) -> None:
    """5e-3 squared, times 0.001, is less than half the smallest float16 number.

    It would enlarge an update by 10 or more. Moments of few units are off by one.
    """
    random = np.random.default_rng(0)
    gradients = rounded(size * (1 + random.random((300, 3, 4))))
    updates, state = run(optax.scale_by_adam(b2=b2, mu_dtype=jnp.float32), gradients)
    exact, _ = moments.adam(gradients, b2=b2)
    assert (np.abs(updates) <= np.abs(exact) * 1.5).all()
    assert (np.asarray(state.nu) > 0).all()


def test_without_the_patch_tiny_gradients_give_infinite_updates() -> None:
    """The test above can fail."""
    with optax_dtypefix.disabled("float16_eps", "promotion"):
        updates, _ = run(optax.scale_by_adam(), [1e-4])
    assert np.isinf(updates).all()


def test_a_moment_that_overflows_does_not_freeze_the_param() -> None:
    gradients = rounded(np.broadcast_to([[3e4]] + [[1.0]] * 40, (41, 12)).reshape(41, 3, 4))
    updates, state = run(optax.scale_by_rms(), gradients)
    assert (np.abs(updates[0]) > 3).all()  # 1 / sqrt(0.1)
    assert (updates[1] < 0.005).all()  # 1 / sqrt(0.9 * 65504)
    np.testing.assert_allclose(in_float64(state.nu), 0.9**40 * HUGE, rtol=0.02)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_gradient_that_is_not_finite_is_not_hidden(bad: float) -> None:
    updates, state = run(optax.scale_by_adam(), [1.0, bad])
    assert not np.isfinite(updates[1]).any()
    assert not np.isfinite(np.asarray(state.nu)).any()


@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_a_variance_is_never_negative(size: float) -> None:
    """For nearly equal gradients, mean square and squared mean only differ by rounding."""
    random = np.random.default_rng(0)
    gradients = np.full((400, 3, 4), size) * np.linspace(1, 2, 12).reshape(3, 4)
    gradients[:5] *= 2
    gradients += 1e-3 * size * random.normal(size=gradients.shape)
    updates, _ = run(optax.scale_by_stddev(), gradients)
    assert np.isfinite(updates).all()


def test_float16_gradients_of_float32_params_give_float32_updates() -> None:
    params, grads = jnp.ones((3, 4), jnp.float32), jnp.full((3, 4), 1e-4, jnp.float16)
    tx = optax.scale_by_adam()
    updates, state = tx.update(grads, tx.init(params), params)
    assert updates.dtype == state.nu.dtype == jnp.float32
    np.testing.assert_allclose(updates, 1.0, rtol=2e-4)


@pytest.mark.parametrize("with_params", [True, False])
@pytest.mark.parametrize("asked", one_of(2, [None, jnp.float16]))
def test_float32_gradients_of_float16_params_give_the_dtypes_of_stock(
    asked: Any, with_params: bool
) -> None:
    params, grads = jnp.ones((3, 4), jnp.float16), jnp.full((3, 4), 1e-4, jnp.float32)

    def dtypes() -> list[Any]:
        tx = optax.scale_by_adam(mu_dtype=asked)
        shapes = jax.eval_shape(
            lambda p: tx.update(grads, tx.init(p), *([p] if with_params else [])), params
        )
        return dtypes_of(shapes)

    with optax_dtypefix.disabled():
        stock = dtypes()
    assert dtypes() == stock
    assert jnp.dtype(jnp.float32) in stock


def test_a_float32_moment_beside_float16_stays_float32_for_a_float64_gradient() -> None:
    with x64():
        tx, params = optax.scale_by_adam(), tree_of(jnp.float16, jnp.float32)
        state, grads = tx.init(params), tree_of(jnp.float16, jnp.float64, seed=1)
        _, new_state = tx.update(grads, state, params)
        assert dtypes_of(new_state) == dtypes_of(state)


def test_update_works_without_params() -> None:
    tx, grads = optax.scale_by_adam(), jnp.full((3, 4), 1e-4, jnp.float16)
    updates, _ = tx.update(grads, tx.init(grads))
    assert updates.dtype == jnp.float16
    np.testing.assert_allclose(updates, 1.0, rtol=1e-3)


@pytest.mark.skipif(not hasattr(contrib, "sophia"), reason="sophia came with optax 0.2.5")
def test_the_objective_of_sophia_gets_the_users_params() -> None:
    seen = []

    def objective(params: Any) -> Any:
        seen.extend(leaf.dtype for leaf in leaves(params))
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves(params))

    tx = sys.modules["optax.contrib._sophia"].scale_by_sophia()
    params = tree_of(jnp.float16)
    assert_keeps_the_contract(tx, params, extra=lambda _: {"obj_fn": objective})
    assert set(seen) == {np.dtype(np.float16)}
    state = tx.init(params)
    for size in (0.0, 1e-4, 1.0):
        grads = tree_map(lambda p, size=size: jnp.full_like(p, size), params)
        updates, state = jax.jit(lambda *given: tx.update(*given, obj_fn=objective))(
            grads, state, params
        )
        assert all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves((updates, state.nu)))
    # The Hessian is 2 everywhere, and taken once of ten steps.
    np.testing.assert_allclose(np.asarray(state.nu["w"], np.float32), 0.02, rtol=1e-3)


# The size of gradients, as a power of 2, for which rounding up was worst against stock.
WORST = {
    **dict.fromkeys(
        ("rms", "stddev", "factored_rms", "adadelta", "simplified_ademamix"), (-9, 0.03)
    ),
    **{"sm3": (-11, 0.01), "madgrad": (-9, 0.005), "adan": (-7, 0.01), "adamax": (-7, 0.005)},
}


@by_some_transforms
def test_moments_do_not_drift_over_300_steps(transform: MomentTransform) -> None:
    """Rounding up gave errors of 0.02 to 0.4."""
    exponent, most = WORST.get(transform.name[len("scale_by_") :], (-7, 0.05))
    rows = measure.gradients((exponent,), ("normal",))
    got, exact = (
        measure.updates_of(moments.build(transform), rows, dtype)
        for dtype in (jnp.float16, jnp.float32)
    )
    for window, error in measure.errors(got, exact).items():
        assert error < most, window


def test_a_steady_gradient_gives_a_moment_of_its_square() -> None:
    """Of 16 units of 2^-24, after one of 46. Rounded up, the moment never falls."""
    tx, param = optax.scale_by_adam(), jnp.ones((1,), jnp.float16)
    gradients = jnp.where(jnp.arange(8200) < 200, 2.0**-8, 2.0**-10)

    def step(state: Any, gradient: Any) -> Any:
        return tx.update(param * gradient.astype(jnp.float16), state, param)[1], None

    state, _ = jax.jit(lambda: jax.lax.scan(step, tx.init(param), gradients))()
    assert 15 <= float(state.nu[0]) / TINY <= 17


@pytest.mark.skipif(
    Version(optax.__version__) >= Version("0.2.7"),
    reason="from 0.2.7 on stock refuses None for a gradient: ValueError",
)
def test_the_gradient_of_a_frozen_param_may_be_none() -> None:
    tx, params = optax.scale_by_adam(), tree_of(jnp.float16)
    grads = {"w": params["w"], "b": None}
    updates, state = tx.update(grads, tx.init(params), params)
    assert updates["b"] is None
    assert updates["w"].dtype == state.nu["w"].dtype == jnp.float16


def test_gradients_may_be_in_another_container_than_params() -> None:
    """Adam does not use the params."""
    tx, leaf = optax.adam(0.125), jnp.ones(2, jnp.float16)
    updates, _ = tx.update([leaf], tx.init([leaf]), (leaf,))
    np.testing.assert_allclose(np.asarray(updates[0], np.float32), -0.125, rtol=1e-3)


def test_init_accepts_shapes() -> None:
    shapes = {"w": jax.ShapeDtypeStruct((2,), jnp.float16)}
    adam = optax.adam(0.1).init(shapes)[0]
    assert (adam.mu["w"].shape, adam.mu["w"].dtype) == ((2,), jnp.dtype(jnp.float16))


@pytest.mark.thorough
@pytest.mark.parametrize("gradient", [0.01, 0.02, -0.05])
def test_a_derivative_through_steps_follows_float32_or_overflows(gradient: float) -> None:
    """Rounding is differentiated as the identity, because a step has the derivative 0."""

    def three_updates(g: Any, dtype: Any) -> Any:
        tx, params = optax.scale_by_adam(), jnp.ones((), dtype)
        total, state = jnp.zeros((), jnp.float32), tx.init(params)
        for _ in range(3):
            update, state = tx.update(g.astype(dtype), state, params)
            total += update.astype(jnp.float32)
        return total

    def derivative(dtype: Any) -> float:
        _, tangent = jax.jvp(lambda g: three_updates(g, dtype), (at,), (jnp.ones(()),))
        return float(tangent)

    at = jnp.float32(gradient)
    # Of a term in 1 / g: the moment of 0.01 is 1e-7, which is rounded to a multiple of 6e-8.
    assert abs(derivative(jnp.float16) - derivative(jnp.float32)) < 1 / abs(gradient)
    # Backwards, the derivative by a float16 moment of 1e-7 is 5e6, and no float16.
    backwards = float(jax.grad(lambda g: three_updates(g, jnp.float16))(at))
    assert np.isinf(backwards) or abs(backwards - derivative(jnp.float32)) < 1 / abs(gradient)


def test_without_params_a_float32_state_gives_float32_updates() -> None:
    tx, grads = optax.scale_by_adam(), jnp.full((3,), 1e-3, jnp.float16)
    updates, _ = tx.update(grads, tx.init(jnp.ones((3,), jnp.float32)))
    assert updates.dtype == jnp.float32


def test_mu_dtype_float32_gives_float32_updates() -> None:
    tx, params = optax.scale_by_adam(mu_dtype=jnp.float32), jnp.ones((3,), jnp.float16)
    updates, _ = tx.update(params, tx.init(params), params)
    assert updates.dtype == jnp.float32


def test_updates_of_an_integer_leaf_keep_their_fractions() -> None:
    tx = optax.scale_by_adam()
    params = {"h": jnp.ones((3,), jnp.float16), "i": jnp.ones((3,), jnp.int32)}
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(np.asarray(updates["i"], float), 1.0, rtol=1e-3)
    assert updates["i"].dtype == jnp.float32


@pytest.mark.skipif(not hasattr(optax, "adadelta"), reason="it came with optax 0.2.0")
@pytest.mark.parametrize("scale", [500, 5000])
def test_adadelta_with_squares_past_the_largest_number_does_not_feed_on_itself(scale: int) -> None:
    """Its second average has the squares of updates, which the first one divides."""
    grads = scale * np.random.default_rng(0).normal(size=(300, 6, 5))
    ends = {}
    for dtype in (jnp.float16, jnp.float32):
        tx, params = optax.adadelta(1.0), jnp.ones((6, 5), dtype)

        def step(carry: Any, grad: Any, tx: Any = tx) -> tuple[Any, None]:
            params, state = carry
            updates, state = tx.update(grad.astype(params.dtype), state, params)
            return (optax.apply_updates(params, updates), state), None

        scan = jax.jit(lambda c, f=step: jax.lax.scan(f, c, jnp.asarray(grads, jnp.float32))[0][0])
        ends[dtype] = np.asarray(scan((params, tx.init(params))), float)
    # It was from -2070 to 3606. The averages are shorter, so the paths differ a little.
    np.testing.assert_allclose(ends[jnp.float16], ends[jnp.float32], atol=0.1)
