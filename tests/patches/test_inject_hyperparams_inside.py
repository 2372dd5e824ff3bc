"""What runs inside ``inject_hyperparams`` gets the params, gradients and arguments of the user."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

from support.contract import assert_keeps_the_contract
from support.thorough import one_of
from support.trees import dtypes_of, in_float64, leaves, tree_map, tree_of, types

# optax 0.1.2 calls jax.tree_leaves in inject_hyperparams.
pytestmark = [
    pytest.mark.rule("C7"),
    pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated:FutureWarning"),
]

inject, RATE = optax.inject_hyperparams, 1e-2

HAS_EXTRA_ARGS = hasattr(optax, "inject_stateful_hyperparams")


def inject_stateful(factory: Any) -> Any:
    """Call ``inject_stateful_hyperparams``, from 0.1.9 on a deprecated name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return optax.inject_stateful_hyperparams(factory)


@pytest.mark.skipif(not HAS_EXTRA_ARGS, reason="stateful schedules came with optax 0.1.8")
def test_a_stateful_schedule_keeps_its_state_and_gets_the_users_dtypes() -> None:
    from optax._src import base

    seen = []

    class Follow(base.StatefulSchedule):
        def init(self) -> Any:
            return jnp.asarray(0.5, jnp.bfloat16)

        def update(self, state: Any, **extra_args: Any) -> Any:
            seen.append(extra_args["value"].dtype)
            return state + jnp.asarray(0.5, jnp.float32) * 0

        def __call__(self, state: Any, **extra_args: Any) -> Any:
            return state * extra_args.get("value", 1)  # There is none in `init`.

    tx, params = inject_stateful(optax.sgd)(Follow(), momentum=0.9), tree_of(jnp.bfloat16)
    value = jnp.ones((), jnp.bfloat16)
    assert_keeps_the_contract(tx, params, extra=lambda _: {"value": value})
    assert set(seen) == {jnp.dtype(jnp.bfloat16)}
    state = tx.init(params)
    assert state.hyperparams["learning_rate"].dtype == jnp.bfloat16
    assert state.hyperparams_states["learning_rate"].dtype == jnp.bfloat16


@pytest.mark.skipif(not HAS_EXTRA_ARGS, reason="stateful schedules came with optax 0.1.8")
def test_a_stateful_schedule_may_start_with_an_integer() -> None:
    from optax._src import base

    class Follow(base.StatefulSchedule):
        def init(self) -> Any:
            return jnp.zeros((), jnp.int32)

        def update(self, state: Any, **_: Any) -> Any:
            return state + 1

        def __call__(self, state: Any, **extra_args: Any) -> Any:
            return extra_args.get("value", state)  # There is none in `init`.

    tx, params = inject_stateful(optax.sgd)(Follow()), tree_of(jnp.float32)
    updates, state = tx.update(params, tx.init(params), params, value=jnp.float32(0.25))
    np.testing.assert_array_equal(updates["w"], -0.25 * params["w"])
    assert state.hyperparams["learning_rate"] == 0.25


@pytest.mark.skipif(not HAS_EXTRA_ARGS, reason="there are no extra arguments before optax 0.1.8")
def test_a_function_in_the_extra_arguments_gets_the_users_dtypes() -> None:
    seen: list[Any] = []

    def value_fn(params: Any, scale: Any) -> Any:
        seen.extend(leaf.dtype for leaf in leaves(params))
        return sum(jnp.sum(leaf) for leaf in leaves(params)) * scale

    def descend(learning_rate: Any) -> Any:
        def update(grads: Any, state: Any, params: Any, **extra_args: Any) -> Any:
            fn = extra_args["value_fn"]
            value, grads = jax.value_and_grad(fn)(params, extra_args["batch"])
            dtypes = {*dtypes_of((value, grads, extra_args["value"]))}
            assert dtypes == {jnp.dtype(jnp.bfloat16)}
            assert extra_args["batch"].dtype == jnp.bfloat16
            return tree_map(lambda g: -learning_rate * g, grads), state

        return optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)

    tx = inject_stateful(descend)(0.5)
    batch = jnp.ones((2,), jnp.bfloat16)

    def extra(params: Any) -> Any:
        value = sum(jnp.sum(leaf) for leaf in leaves(params))
        return {"value": value, "value_fn": lambda p, b: value_fn(p, b[0]), "batch": batch}

    assert_keeps_the_contract(tx, tree_of(jnp.bfloat16), extra=extra)
    assert set(seen) == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.skipif(
    Version(optax.__version__) < Version("0.2.5"), reason="stock takes no typed random keys"
)
def test_a_hyperparameter_may_be_a_typed_random_key() -> None:
    """Repeat a test of ``optax/schedules/_inject_test.py``: a key has no weak type."""

    def noise(key: Any, scale: Any) -> Any:
        def update(updates: Any, state: Any, params: Any = None) -> Any:
            del updates, params
            return jax.random.normal(state, (3,), jnp.bfloat16) * scale, jax.random.split(state)[0]

        return optax.GradientTransformation(lambda _: key, update)

    tx = optax.inject_hyperparams(noise)(key=jax.random.key(1), scale=1e-3)
    params = jnp.ones(3, jnp.bfloat16)
    state = tx.init(params)
    for update in (tx.update, jax.jit(tx.update)):
        updates, state = update(params, state)
        assert updates.dtype == jnp.bfloat16
        assert jnp.issubdtype(state.hyperparams["key"].dtype, jax.dtypes.prng_key)
        assert state.hyperparams["scale"].dtype == jnp.bfloat16


class _Model:
    """A function of the params with a method, like a model."""

    def __call__(self, params: Any) -> Any:
        return jnp.sum(params)

    def penalty(self, params: Any) -> Any:
        del params
        return 2.0


@pytest.mark.skipif(
    Version(optax.__version__) < Version("0.1.9"),
    reason="stock's inject_hyperparams takes no extra arguments",
)
@pytest.mark.parametrize(
    ("call", "function"),
    [
        (lambda fn, _: fn(), lambda: 2.0),
        (lambda fn, p: fn(params=p), lambda params: 2 * params.size),
        (lambda fn, _: fn(jnp.int32(1001)), lambda step: step % 1000 + 1),
        (lambda fn, p: fn.penalty(p), _Model()),
    ],
    ids=["no argument", "by name", "a step", "a method"],
)
@pytest.mark.parametrize("shape", [(2,), ()], ids=str)
def test_a_function_in_the_extra_arguments_may_take_any_arguments(
    call: Any, function: Any, shape: Any
) -> None:
    def update(updates: Any, state: Any, params: Any = None, *, fn: Any) -> Any:
        return updates * jnp.asarray(call(fn, params), updates.dtype), state

    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    tx = optax.inject_hyperparams(lambda lr: optax.chain(inner, optax.sgd(lr)))(lr=0.125)
    params = jnp.ones(shape, jnp.bfloat16)
    factor = float(call(function, params))
    updates, _ = tx.update(params, tx.init(params), params, fn=function)
    np.testing.assert_array_equal(np.asarray(updates, np.float32), np.full(shape, -0.125 * factor))


def test_lookahead_inside_keeps_bfloat16() -> None:
    tx = optax.inject_hyperparams(lambda lr: optax.lookahead(optax.sgd(lr), 2, 0.5))(lr=0.125)
    fast = {"w": jnp.ones(3, jnp.bfloat16)}
    params = optax.LookaheadParams.init_synced(fast)
    updates, _ = tx.update(fast, tx.init(params), params)
    assert {*dtypes_of(updates)} == {jnp.dtype(jnp.bfloat16)}


def test_a_string_in_the_state_is_left_alone() -> None:
    named = optax.identity()._replace(init=lambda _: {"name": "layer-1"})
    tx = optax.inject_hyperparams(lambda lr: optax.chain(named, optax.sgd(lr)))(lr=0.125)
    params = jnp.ones(2, jnp.bfloat16)
    updates, state = tx.update(params, tx.init(params), params)
    assert state.inner_state[0] == {"name": "layer-1"}
    np.testing.assert_array_equal(np.asarray(updates, np.float32), -0.125)


def test_the_state_may_lack_a_scheduled_hyperparameter() -> None:
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=lambda _: 0.125)
    params = jnp.ones(2, jnp.float32)
    state = tx.init(params)._replace(hyperparams={})
    updates, _ = tx.update(params, state, params)
    np.testing.assert_array_equal(updates, -0.125)


def is_bfloat16(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.dtype == jnp.bfloat16, tree)


def decaying_bfloat16(learning_rate: Any) -> Any:
    """Return a user-defined transformation that checks dtypes."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        def step(grad: Any, param: Any) -> Any:
            decay = 0.5 * param if grad.dtype == jnp.bfloat16 == param.dtype else 0
            return -learning_rate * (grad + decay)

        return tree_map(step, grads, params), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


LOOKING_AT_DTYPES: dict[str, Any] = {
    "masked": lambda rate: optax.masked(optax.adam(rate), is_bfloat16),
    "decay": lambda rate: optax.chain(
        optax.add_decayed_weights(0.5, mask=is_bfloat16), optax.sgd(rate)
    ),
    "labels": lambda rate: optax.multi_transform(
        {True: optax.sgd(rate), False: optax.adam(rate)}, is_bfloat16
    ),
    "user": decaying_bfloat16,
}


@pytest.mark.parametrize("build", LOOKING_AT_DTYPES.values(), ids=LOOKING_AT_DTYPES.keys())
def test_the_inner_transformation_gets_the_users_dtypes(build: Any) -> None:
    params, grads = tree_of(jnp.bfloat16, jnp.float32), tree_of(jnp.bfloat16, jnp.float32, seed=1)
    tx, plain = inject(build)(RATE), build(RATE)
    assert_keeps_the_contract(tx, params)
    updates, _ = tx.update(grads, tx.init(params), params)
    expected, _ = plain.update(grads, plain.init(params), params)
    assert types(updates) == types(expected)
    for name in params:
        np.testing.assert_allclose(
            in_float64(updates)[name], in_float64(expected)[name], rtol=1e-5 if name == "b" else 0
        )


def averaging(start: Any) -> Any:
    """Return a factory of transformations that emit a running mean of the gradients."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        state = tree_map(lambda mean, grad: 0.5 * mean + 0.5 * grad, state, grads)
        return state, state

    return lambda rate: optax.chain(
        optax.GradientTransformation(lambda p: tree_map(start, p), update), optax.scale(rate)
    )


@pytest.mark.parametrize(
    ("start", "dtype", "value"),
    [
        (lambda _: 0, jnp.float32, 0.25),
        (lambda p: jnp.zeros(p.shape, jnp.int32), jnp.float32, 0.25),
        (lambda p: jnp.zeros(p.shape, jnp.float32), jnp.complex64, 0.25 + 0.5j),
    ],
    ids=["Python", "int32", "complex"],
)
def test_an_inner_state_may_become_fractional_or_complex(
    start: Any, dtype: Any, value: Any
) -> None:
    params = jnp.full((2,), value, dtype)
    tx = inject(averaging(start))(1.0)
    state = tx.init(params)
    for factor in (0.5, 0.75):
        updates, state = jax.jit(tx.update)(params, state, params)
        np.testing.assert_array_equal(updates, factor * params)


HAS_DTYPE = "hyperparam_dtype" in inspect.signature(optax.inject_hyperparams).parameters
WIDE: dict[str, Any] = {
    "array": lambda: inject(optax.scale_by_rms)(jnp.float32(0.999)),
    "NumPy scalar": lambda: inject(optax.scale_by_rms)(np.float32(0.999)),
    "schedule": lambda: inject(optax.scale_by_rms)(lambda _: jnp.float32(0.999)),
}
if HAS_DTYPE:
    wide = functools.partial(inject, hyperparam_dtype=jnp.float32)
    WIDE["hyperparam_dtype"] = lambda: wide(optax.scale_by_rms)(0.999)


@pytest.mark.parametrize("build", WIDE.values(), ids=WIDE)
def test_beside_an_array_as_decay_a_moment_stays_and_does_not_stall(build: Any) -> None:
    """As in ``optax.scale_by_rms(array)``. On stock 0.2.8 the first step promotes it."""
    tx, ones = build(), jnp.ones(4, jnp.bfloat16)
    state, updates = jax.lax.scan(
        lambda state, _: tx.update(ones, state, ones)[::-1], tx.init(ones), None, 1500
    )
    assert updates.dtype == jnp.bfloat16
    assert state.inner_state.nu.dtype == jnp.bfloat16
    moment = np.asarray(state.inner_state.nu, float)
    np.testing.assert_allclose(moment, 1 - 0.999**1500, rtol=0.02)  # Stalled, it would be 0.25.


@pytest.mark.thorough
def test_the_derivative_by_a_decay_in_bfloat16_is_that_in_float32() -> None:
    """Weakly typed, the decay is rounded at each leaf: the derivative has the wrong sign."""
    start = jnp.asarray([0.2, -1.6, 0.7, 1.1, -0.4, 0.9, -0.1, 1.5, -0.8])

    def loss(decay: Any, shift: Any, dtype: Any) -> Any:
        params, tx = (start + shift).astype(dtype), inject(optax.adam)(0.1, b1=decay, b2=0.99)
        state = tx.init(params)
        for _ in range(3):
            updates, state = tx.update((params - 0.3).astype(dtype), state, params)
            params = optax.apply_updates(params, updates)
        return (params.astype(jnp.float32) ** 2).sum()

    grad, decay = jax.jit(jax.grad(loss), static_argnums=2), jnp.float32(0.9)
    # Moments and params are rounded, in each of these by chance.
    shifts = np.arange(8, dtype=np.float32) / 64
    got, exact = (
        np.mean([grad(decay, shift, dtype) for shift in shifts])
        for dtype in (jnp.bfloat16, jnp.float32)
    )
    np.testing.assert_allclose(got, exact, atol=0.01)


@pytest.mark.parametrize("asked", [False, True] if HAS_DTYPE else [False])
@pytest.mark.parametrize("dtype", one_of(3, [jnp.bfloat16, jnp.float16, jnp.float32]))
def test_functions_without_promotion_accept_a_hyperparameter(dtype: Any, asked: bool) -> None:
    """In stock a hyperparameter has the dtype of the params, so ``jax.lax.mul`` accepts both."""

    def factory(learning_rate: Any) -> Any:
        def update(grads: Any, state: Any, params: Any = None) -> Any:
            del params
            return tree_map(lambda g: jax.lax.mul(g, jnp.broadcast_to(rate, g.shape)), grads), state

        rate = jnp.asarray(learning_rate)
        return optax.GradientTransformation(lambda _: (), update)

    injected = inject(factory, hyperparam_dtype=dtype) if asked else inject(factory)
    tx, params = injected(learning_rate=0.1), jnp.ones((3,), dtype)
    updates, _ = tx.update(params, tx.init(params), params)
    assert updates.dtype == dtype
    np.testing.assert_allclose(np.asarray(updates, float), 0.1, rtol=4e-3)


@pytest.mark.parametrize("kind", [TypeError, ValueError])
def test_an_error_of_the_users_own_comes_out_at_once(kind: type[Exception]) -> None:
    calls = []

    def update(*_: Any) -> Any:
        calls.append(1)
        raise kind("mine")

    inner = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    tx = inject(lambda rate: optax.chain(optax.scale(rate), inner))(0.5)
    params = tree_of("bfloat16")
    state = tx.init(params)
    calls.clear()
    with pytest.raises(kind, match="mine") as raised:
        tx.update(params, state, params)
    assert calls == [1]
    assert raised.value.__context__ is None


def test_a_numpy_scalar_scales_float8_as_a_python_number_does() -> None:
    """JAX promotes float8 with nothing else."""

    def scaled_by(rate: Any) -> Any:
        return optax.stateless(lambda grads, _: grads * rate)

    tx, params = inject(scaled_by)(rate=np.float32(0.5)), jnp.ones((), jnp.float8_e4m3fn)
    updates, _ = tx.update(params, tx.init(params), params)
    assert (float(updates), updates.dtype) == (0.5, jnp.float8_e4m3fn)


STATIC: dict[str, Any] = {
    "NumPy scalar": np.float32(0.5),
    "array": jnp.asarray(0.5, jnp.bfloat16),
}


@pytest.mark.parametrize("value", STATIC.values(), ids=STATIC)
def test_a_static_argument_is_passed_on_as_it_is(value: Any) -> None:
    given = []

    def build(rate: Any, limit: Any) -> Any:
        given.append(limit)
        return optax.sgd(rate)

    tx, params = inject(build, static_args="limit")(rate=0.1, limit=value), tree_of(jnp.bfloat16)
    tx.update(params, tx.init(params), params)
    assert given
    assert all(limit is value for limit in given)


def test_a_gradient_after_a_frozen_param_keeps_its_dtype() -> None:
    """The gradient of a frozen param is None."""
    seen = []

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        seen.append(grads["b"].dtype)
        return grads, state

    inner = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    tx = inject(lambda rate: optax.chain(inner, optax.scale(rate)))(rate=0.125)
    params = {"a": jnp.ones(2, jnp.float32), "b": jnp.ones(3, jnp.bfloat16)}
    grads = {"a": None, "b": jnp.ones(3, jnp.bfloat16)}
    updates, _ = tx.update(grads, tx.init(params), params)
    assert seen[-1] == updates["b"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(updates["b"], np.float32), 0.125)


def test_a_gradient_narrower_than_float32_params_is_shown_as_it_is() -> None:
    seen = []

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        seen.append(grads.dtype)
        return grads, state

    inner = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    tx = inject(lambda rate: optax.chain(inner, optax.scale(rate)))(rate=0.125)
    params = jnp.ones(2)
    tx.update(params.astype(jnp.bfloat16), tx.init(params), params)
    assert seen[-1] == jnp.bfloat16


def test_an_integer_param_beside_bfloat16_may_have_a_float_gradient() -> None:
    tx = inject(optax.sgd)(0.125)
    params = {"n": jnp.asarray([1, 2], jnp.int32), "w": jnp.ones(2, jnp.bfloat16)}
    grads = {"n": jnp.asarray([1.5, -3.0]), "w": jnp.ones(2, jnp.bfloat16)}
    updates, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_array_equal(updates["n"], [-0.1875, 0.375])
    assert updates["w"].dtype == jnp.bfloat16
