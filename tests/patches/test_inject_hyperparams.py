from __future__ import annotations

import inspect
import textwrap
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

import optax_dtypefix
from evidence.audit import cases as transformations
from optax_dtypefix._contract.x64 import x64
from optax_dtypefix.patches.releases import TESTED
from support.contract import assert_keeps_the_contract, float64_in
from support.moments import adam_step
from support.patch_cases import FuzzCase, Program
from support.processes import PATCHED, STOCK, finish, start, stdout_of
from support.thorough import one_of
from support.training import train
from support.transformations import warm_up
from support.trees import REGIMES, dtypes_of, in_float64, leaves, tree_map, tree_of, types

if TYPE_CHECKING:
    from support.fuzzing import Draw


# optax 0.1.2 calls jax.tree_leaves in inject_hyperparams.
pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated:FutureWarning")

inject = optax.inject_hyperparams


def fuzzed(draw: Draw) -> Any:
    build = optax.inject_hyperparams(draw.of(optax.sgd, optax.adam, optax.adamw, optax.rmsprop))
    return build(learning_rate=draw.rate())


def injected_schedule() -> Any:
    warm_up = optax.linear_schedule(0.01, 0.1, 10)
    return inject(optax.adamw)(warm_up, weight_decay=0.1)


FUZZ = FuzzCase(fuzzed)
PROGRAMS = {
    "momentum": Program(lambda: inject(optax.sgd)(0.1, momentum=0.9)),
    "adam": Program(lambda: inject(optax.adam)(1e-2)),
    "schedule": Program(injected_schedule),
    "array": Program(lambda: inject(optax.adam)(jnp.asarray(1e-2, jnp.float32))),
    "integer": Program(lambda: inject(optax.apply_every)(2)),
    "static": Program(lambda: inject(optax.adam, static_args="b1")(1e-2)),
    "hyperparam_dtype": Program(
        lambda: inject(optax.adam, hyperparam_dtype=jnp.float32)(1e-2), releases=">=0.1.4"
    ),
    "bfloat16": Program(lambda: inject(optax.adam)(1e-3), jnp.bfloat16, same="state"),
}

STEPS, RATE, B2, EPS = 100, 1e-2, 0.999, 1e-8


def test_adam_in_float32_follows_the_paper() -> None:
    params, goal = tree_of(jnp.float32), tree_of(jnp.float32, seed=1)
    (got, _), _ = train(inject(optax.adam)(RATE), params, goal, STEPS, lambda _: None)
    expected, target = in_float64(params), in_float64(goal)
    for name in params:
        m = v = 0.0
        for count in range(1, STEPS + 1):
            direction, m, v = adam_step(expected[name] - target[name], m, v, count)
            expected[name] = expected[name] - RATE * direction
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-4)


def test_a_zero_gradient_in_float16_gives_a_zero_update() -> None:
    params = tree_of(jnp.float16)
    tx, zeros = inject(optax.adam)(RATE), tree_map(jnp.zeros_like, params)
    updates, state = jax.jit(tx.update)(zeros, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"], zeros["w"])
    assert state.hyperparams["eps"] == jnp.float16(EPS) == 0  # As on stock: it is used as given.


def test_tiny_gradients_in_float16_give_the_updates_of_adam() -> None:
    """Their squares underflow in float16. ``float16_eps`` keeps the moments."""
    params = jnp.ones((3, 4), jnp.float16)
    tx, other = inject(optax.adam)(RATE), optax.adam(RATE)
    state, expected_state = tx.init(params), other.init(params)
    for size in (1e-4, 1e-5, 0.0, 1e-3):
        grads = jnp.full_like(params, size)
        updates, state = jax.jit(tx.update)(grads, state, params)
        expected, expected_state = jax.jit(other.update)(grads, expected_state, params)
        assert (np.abs(updates) <= 1.1 * RATE).all()
        np.testing.assert_allclose(updates, expected, rtol=0.01)


def test_an_integer_first_leaf_does_not_truncate_the_learning_rate() -> None:
    params = tree_of(jnp.float32, jnp.int32)  # "b", the integers, comes before "w".
    tx = inject(optax.sgd)(0.5)
    updates, state = jax.jit(tx.update)(params, tx.init(params), params)
    assert state.hyperparams["learning_rate"].dtype == jnp.float32
    np.testing.assert_array_equal(updates["w"], -0.5 * params["w"])


FACTORED = ("min_dim_size_to_factor", "factored")
BUILDS: dict[str, Any] = {
    "sgd": lambda: inject(optax.sgd)(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: inject(optax.adam)(RATE),
    "adamw, schedule": lambda: inject(optax.adamw)(warm_up, weight_decay=0.1),
    "weak schedule": lambda: inject(optax.adam)(optax.cosine_decay_schedule(0.1, 10)),
    "adafactor": lambda: inject(optax.adafactor, static_args=FACTORED)(0.1),
    "rmsprop": lambda: inject(optax.rmsprop)(0.1, momentum=0.9),
    "array": lambda: inject(optax.sgd)(jnp.asarray(0.1, jnp.float32), momentum=0.9),
    "NumPy array": lambda: inject(optax.adam)(np.asarray(0.1)),
    "NumPy scalar": lambda: inject(optax.sgd)(np.float32(0.1), momentum=0.9),
    "NumPy double": lambda: inject(optax.adam)(np.float64(0.1)),
    "integer": lambda: inject(optax.apply_every)(2),
    "integer schedule": lambda: inject(optax.apply_every)(lambda count: jnp.where(count < 3, 1, 2)),
    "static": lambda: inject(optax.sgd, static_args=iter(["learning_rate"]))(0.1, momentum=0.9),
    "inside, apply_if_finite": lambda: inject(
        lambda rate: optax.apply_if_finite(optax.adam(rate), 3)
    )(RATE),
    "inside MultiSteps": lambda: optax.MultiSteps(inject(optax.adam)(RATE), 2),
    "inside apply_if_finite": lambda: optax.apply_if_finite(inject(optax.adam)(warm_up), 3),
    "inside chain and masked": lambda: optax.chain(
        optax.clip(1.0), optax.masked(inject(optax.adam)(RATE), {"w": True, "b": False})
    ),
}
if hasattr(optax, "lion"):
    BUILDS["lion"] = lambda: inject(optax.lion)(RATE)
if optax.__version__ not in ("0.1.2", "0.1.3"):
    BUILDS["hyperparam_dtype"] = lambda: inject(optax.adam, hyperparam_dtype=jnp.float32)(RATE)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS.keys())
def test_keeps_the_contract(build: Any) -> None:
    assert_keeps_the_contract(build(), tree_of(jnp.bfloat16, jnp.float32))


@pytest.mark.parametrize("dtype", one_of(3, [jnp.bfloat16, jnp.float16, jnp.float32]))
def test_hyperparameters_have_the_users_dtype(dtype: Any) -> None:
    state = inject(optax.adam)(RATE).init(tree_of(dtype))
    assert {*dtypes_of((state.hyperparams, state.inner_state[0].mu))} == {jnp.dtype(dtype)}
    assert float(state.hyperparams["b2"]) == float(jnp.asarray(B2, dtype))


@pytest.mark.parametrize("first", [jnp.int32, jnp.complex64])
def test_hyperparameters_are_floats_beside_other_kinds_of_number(first: Any) -> None:
    """Stock makes them integers up to 0.2.7, and complex numbers in all releases."""
    state = inject(optax.adam)(RATE).init(tree_of(jnp.bfloat16, first))
    for name, value in (("learning_rate", RATE), ("b2", B2)):
        assert jnp.issubdtype(state.hyperparams[name].dtype, jnp.floating)
        leaf = state.hyperparams[name]
        assert float(leaf) == float(jnp.asarray(value, leaf.dtype))


@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float32]))
@pytest.mark.parametrize(
    "rate", one_of(4, [RATE, np.float64(RATE), np.asarray(RATE), jnp.float32(RATE)])
)
def test_64_bit_mode_adds_no_float64(rate: Any, dtype: Any) -> None:
    with x64():
        tx, params = inject(optax.adamw)(rate), tree_of(dtype)
        assert_keeps_the_contract(tx, params)
        stock = optax_dtypefix.original(inject)(optax.adamw)(rate).init(params)
        assert dtypes_of(tx.init(params).hyperparams) == dtypes_of(stock.hyperparams)
        # Weakly typed scalars of Python numbers are computed in float64, as in optax itself.
        allowed = {()} if dtype == jnp.bfloat16 else set()
        assert {*float64_in(lambda p: tx.update(p, tx.init(p), p), params)} <= allowed


def test_a_float64_array_is_kept_in_float32_for_float32_params() -> None:
    with x64():
        params = tree_of(jnp.float32)
        tx = inject(optax.adam)(jnp.asarray(RATE, jnp.float64))
        assert_keeps_the_contract(tx, params)
        assert tx.init(params).hyperparams["learning_rate"].dtype == jnp.float32
        assert not float64_in(lambda p: tx.update(p, tx.init(p), p), params)


def test_a_float64_schedule_keeps_float32_params_in_float32() -> None:
    with x64():
        params = tree_of(jnp.float32)
        tx = inject(optax.adam)(lambda count: jnp.asarray(RATE, jnp.float64) / (count + 1))
        assert_keeps_the_contract(tx, params)
        # Only the scalars of the user-defined schedule are float64.
        assert set(float64_in(lambda p: tx.update(p, tx.init(p), p), params)) == {()}


@pytest.mark.parametrize("beside", [jnp.float64, jnp.float32])
def test_a_float64_leaf_is_stepped_in_float64(beside: Any) -> None:
    with x64():
        params, tx = tree_of(beside, jnp.float64), inject(optax.adam)(RATE)
        assert_keeps_the_contract(tx, params)
        updates, state = tx.update(params, tx.init(params), params)
        assert state.hyperparams["b2"].dtype == jnp.float64 or beside == jnp.float32
        expected, _, _ = adam_step(in_float64(params)["b"], 0.0, 0.0, 1)
        np.testing.assert_allclose(updates["b"], -RATE * expected, rtol=1e-12)


@pytest.mark.skipif("hyperparam_dtype" not in BUILDS, reason="it came with optax 0.1.4")
def test_hyperparam_dtype_is_kept() -> None:
    params = tree_of(jnp.float32)
    asked: Any
    for asked in (jnp.bfloat16, "bfloat16"):
        tx = inject(optax.sgd, hyperparam_dtype=asked)(jnp.asarray(0.1, jnp.float32))
        assert_keeps_the_contract(tx, params)
        state = tx.init(params)
        assert state.hyperparams["learning_rate"].dtype == jnp.bfloat16
        updates, _ = tx.update(params, state, params)
        rounded = np.float32(0.10009765625)  # 0.1 in bfloat16.
        np.testing.assert_array_equal(updates["w"], -rounded * params["w"])


@pytest.mark.parametrize("rate", one_of(2, [0.5, warm_up]), ids=["number", "schedule"])
@pytest.mark.parametrize("first", [jnp.int32, jnp.complex64])
def test_an_integer_or_complex_state_restored_from_stock_keeps_its_dtypes(
    first: Any, rate: Any
) -> None:
    params = tree_of(jnp.float32, first)
    restored = optax_dtypefix.original(inject)(optax.sgd)(rate, momentum=0.9).init(params)
    # What stock before 0.2.8 has there, since it casts to the dtype of the first leaf.
    restored = restored._replace(hyperparams={"learning_rate": jnp.zeros((), first)})
    tx = inject(optax.sgd)(rate, momentum=0.9)
    updates, new_state = jax.jit(tx.update)(params, restored, params)
    assert types(new_state) == types(restored)
    if callable(rate):  # The number in the state is not used.
        expected = -rate(new_state.count - 1) * params["w"]
        if optax.__version__ not in ("0.1.2", "0.1.3"):  # They count before they call the rate.
            # Stock's complex momentum makes complex updates of real params.
            np.testing.assert_allclose(np.real(updates["w"]), expected, rtol=1e-6)


def test_without_params_a_hyperparameter_keeps_its_float64_digits() -> None:
    with x64():
        tx, grads = inject(optax.sgd)(0.1), jnp.ones(3, jnp.float64)
        updates, _ = tx.update(grads, tx.init(grads))
        np.testing.assert_allclose(updates, -0.1, rtol=1e-15)


@pytest.mark.skipif(
    Version(optax.__version__) < Version("0.1.5"), reason="stock traces the scalar up to 0.1.4"
)
def test_a_factory_may_compare_a_numpy_scalar_under_jit() -> None:
    def factory(learning_rate: Any, bound: Any) -> Any:
        return optax.sgd(learning_rate if bound > 1 else 0.0)

    with x64():
        params = jnp.ones(3, jnp.float32)
        tx = inject(factory, hyperparam_dtype=jnp.float64)(0.1, bound=np.float32(2))
        updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    np.testing.assert_allclose(updates, -0.1 * params)


@pytest.mark.skipif("hyperparam_dtype" not in BUILDS, reason="it came with optax 0.1.4")
def test_a_hyperparameter_in_half_precision_is_used_in_float32() -> None:
    """Its powers would be rounded."""
    grads = jnp.ones(3, jnp.float32)
    tx = inject(lambda rate: optax.scale(rate**8), hyperparam_dtype=jnp.bfloat16)(0.9)
    updates, _ = tx.update(grads, tx.init(grads), grads)
    np.testing.assert_allclose(updates, float(jnp.bfloat16(0.9)) ** 8, rtol=1e-5)


@pytest.mark.parametrize("rate", one_of(2, [jnp.float32(0.5), lambda _: jnp.float32(0.5)]))
def test_an_array_or_a_schedule_meets_half_precision_in_lax(rate: Any) -> None:
    """Functions of ``jax.lax`` do not promote."""

    def scale(rate: Any) -> Any:
        return optax.stateless(lambda grads, _: jax.lax.mul(grads, jnp.broadcast_to(rate, (3,))))

    grads, tx = jnp.ones(3, jnp.bfloat16), inject(scale)(rate)
    updates, _ = tx.update(grads, tx.init(grads), grads)
    np.testing.assert_array_equal(updates, 0.5 * grads)


SETTINGS: dict[str, Any] = {
    "number": 0.25,
    "integer": 1,
    "array": jnp.asarray(0.25, jnp.float32),
    "narrow": jnp.asarray(0.25, jnp.bfloat16),
    "NumPy": np.asarray(0.25),
    "double": np.float64(0.25),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("dtype", one_of(2, [jnp.float32, jnp.bfloat16], 1))
@pytest.mark.parametrize(
    "jit", one_of(2, [jax.jit, lambda function: function]), ids=["jit", "eager"]
)
def test_the_user_may_set_a_hyperparameter(jit: Any, dtype: Any, setting: Any) -> None:
    tx, params = inject(optax.sgd)(0.1, momentum=0.9), tree_of(dtype)
    step = jit(tx.update)
    _, state = step(params, tx.init(params), params)
    # Without momentum the update is one product.
    state = state._replace(inner_state=tx.init(params).inner_state)
    state.hyperparams["learning_rate"] = setting
    updates, state = step(params, state, params)
    np.testing.assert_array_equal(
        np.asarray(updates["w"], np.float32), -float(setting) * np.asarray(params["w"], np.float32)
    )
    assert float(state.hyperparams["learning_rate"]) == float(setting)
    expected = types(state)
    _, state = step(params, state, params)
    assert types(state) == expected
    assert {*dtypes_of(state.inner_state)} == {jnp.dtype(dtype)}


def test_wide_updates_of_an_inner_transformation_are_cast_back() -> None:
    def wide(learning_rate: Any) -> Any:
        def update(grads: Any, state: Any, params: Any = None) -> Any:
            del params
            return tree_map(lambda g: (learning_rate * g).astype(jnp.float32), grads), state

        return optax.GradientTransformation(lambda _: optax.EmptyState(), update)

    params = jnp.ones(3, jnp.bfloat16)
    tx = optax.inject_hyperparams(wide)(learning_rate=0.5)
    updates, _ = tx.update(params, tx.init(params), params)
    assert updates.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(updates, np.float32), 0.5)


def test_update_works_without_params() -> None:
    params = tree_of(jnp.bfloat16)
    tx = inject(optax.sgd)(0.5)
    updates, _ = tx.update(params, tx.init(params))
    np.testing.assert_array_equal(updates["w"], -0.5 * params["w"])


def test_arguments_are_checked_as_in_stock() -> None:
    with pytest.raises(ValueError, match="static_args"):
        inject(optax.sgd, static_args="no_such_argument")
    with pytest.raises(TypeError):
        inject(optax.sgd)(no_such_argument=1)


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optax.sgd, {"momentum": 0.9, "nesterov": True}),
    "adam": (optax.adam, {"b1": 0.9, "b2": 0.999, "eps": 1e-8}),
    "adamw": (optax.adamw, {"weight_decay": 0.01}),
    "rmsprop": (optax.rmsprop, {"decay": 0.9}),
    "lamb": (optax.lamb, {"weight_decay": 0.01}),
    "yogi": (optax.yogi, {}),
}


@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
@pytest.mark.parametrize("name", one_of(2, OPTIMIZERS, 1))
def test_an_injected_optimizer_gives_the_updates_of_the_plain_one(name: str, dtype: Any) -> None:
    """Only the last places differ: ``1 - b1`` is computed in float32 here, in Python there.

    A moment that lies between two numbers may be rounded to the other one then.
    """
    optimizer, numbers = OPTIMIZERS[name]
    plain, tx = optimizer(RATE, **numbers), inject(optimizer)(RATE, **numbers)
    params = tree_of(dtype)
    expected_state, state = plain.init(params), tx.init(params)
    for seed in range(1, 4):
        grads = tree_of(dtype, seed=seed)
        expected, expected_state = plain.update(grads, expected_state, params)
        updates, state = tx.update(grads, state, params)
        assert types(updates) == types(expected)
        assert types(state.inner_state) == types(expected_state)
        for got, other in zip(leaves(updates), leaves(expected)):
            np.testing.assert_allclose(
                np.asarray(got, np.float32),
                np.asarray(other, np.float32),
                rtol=3 * float(jnp.finfo(dtype).eps),
            )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("regime", one_of(4, ["float16", "mixed", "bfloat16 x64", "float64 x64"]))
def test_every_optimizer_has_the_dtypes_of_the_plain_one(regime: str) -> None:
    wide, dtypes = REGIMES[regime]
    compared = set()
    with x64(wide):
        params = tree_of(*dtypes)
        for name, function in transformations.public_transformations().items():
            made = plain_and_injected(name, function)
            if made is None:
                continue
            try:
                expected = after_two_steps(made[0], params)
            except Exception:  # The plain optimizer raises, too.
                continue
            try:
                updates, state = after_two_steps(made[1], params)
            except jax.errors.ConcretizationTypeError:  # The optimizer compares in Python.
                continue
            assert types(updates) == types(expected[0]), name
            # A strongly typed leaf here may be a weakly typed number in the plain state.
            state_types = [[t[:2] for t in types(s)] for s in (state.inner_state, expected[1])]
            if regime == "mixed":  # Stock's hyperparameters may make a moment float32.
                state_types = [[(s, float32_if_half(d)) for s, d in flat] for flat in state_types]
            assert state_types[0] == state_types[1], name
            compared.add(name)
    assert {"adam", "adafactor", "lamb", "sm3"} <= compared


def float32_if_half(dtype: Any) -> Any:
    return jnp.dtype(jnp.float32) if dtype == jnp.bfloat16 else dtype


def plain_and_injected(name: str, function: Any) -> Any:
    """Return an optimizer, and one with all its floats injected; None if it takes no float."""
    if name in transformations.WRAPPERS or name.startswith("inject"):
        return None
    try:
        bound = inspect.signature(function).bind(**transformations.required(function))
        bound.apply_defaults()
        arguments = bound.arguments
        plain = function(**arguments)
    except (KeyError, TypeError):  # Other arguments are required.
        return None
    static = [key for key, value in arguments.items() if not isinstance(value, float)]
    if len(static) == len(arguments):
        return None
    return plain, inject(function, static_args=static)(**arguments)


def after_two_steps(tx: Any, params: Any) -> Any:
    """Return the types after two steps. One tells them, if it keeps the types of its state."""

    def kinds(state: Any) -> Any:
        return jax.tree_util.tree_structure(state), types(tree_map(jnp.asarray, state))

    def steps(params: Any) -> Any:
        state = tx.init(params)
        updates, new_state = tx.update(params, state, params)
        if kinds(new_state) == kinds(state):
            return updates, new_state
        return tx.update(params, new_state, params)

    return jax.eval_shape(steps, params)


@pytest.mark.parametrize(
    "dtypes", one_of(2, [(jnp.float32,), (jnp.bfloat16, jnp.float32)], 1), ids=str
)
def test_float32_params_with_bfloat16_gradients_follow_adam_in_float64(dtypes: Any) -> None:
    params = tree_of(*dtypes)
    tx = inject(optax.adam)(RATE)
    state, step = tx.init(params), jax.jit(tx.update)
    moments = {k: (0.0, 0.0) for k, param in params.items() if param.dtype == jnp.float32}
    worst = 0.0
    for count in range(1, 201):
        grads = tree_of(jnp.bfloat16, seed=count)
        updates, state = step(grads, state, params)
        for name, moment in moments.items():
            expected, *moments[name] = adam_step(in_float64(grads)[name], *moment, count)
            worst = max(worst, float(np.abs(updates[name] / RATE + expected).max()))
    assert worst < 1e-5  # 3.4e-6 on stock, and 2.5e-3 for adam with Python's numbers.


@pytest.mark.parametrize(
    ("dtypes", "narrow"),
    [
        ((jnp.float32,), (jnp.bfloat16,)),
        ((jnp.float32,), (jnp.float16,)),
        ((jnp.float32,), (jnp.int8,)),
        ((jnp.bfloat16, jnp.float32), (jnp.bfloat16,)),
    ],
    ids=str,
)
def test_an_update_is_as_wide_as_its_param(dtypes: Any, narrow: Any) -> None:
    """The gradients are narrower, and other leaves are in half precision."""
    params, grads = tree_of(*dtypes), tree_map(jnp.sign, tree_of(*narrow, seed=1))
    updates, _ = inject(optax.sgd)(1e-9).update(grads, inject(optax.sgd)(1e-9).init(params), params)
    assert types(updates) == types(params)
    for update, grad in zip(leaves(in_float64(updates)), leaves(in_float64(grads))):
        np.testing.assert_allclose(update, -1e-9 * grad, rtol=2.0**-8)


@pytest.mark.thorough
@pytest.mark.skipif(optax.__version__ != TESTED[-1], reason="one compiler to count with")
@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
def test_no_memory_is_added(dtype: Any) -> None:
    params = {"w": jnp.ones((256, 256), dtype), "b": jnp.ones((256,), dtype)}
    sizes = []
    for tx in (inject(optax.adamw)(RATE), optax.adamw(RATE)):
        compiled = jax.jit(tx.update).lower(params, tx.init(params), params).compile()
        sizes.append(compiled.memory_analysis().temp_size_in_bytes)
    scalars = 1024  # One more leaf would take 131072.
    assert sizes[0] <= sizes[1] + scalars


def test_the_inner_transformation_gets_weakly_typed_gradients_as_from_stock() -> None:
    weak = jnp.broadcast_to(jnp.asarray(2.0), (3,))
    params = {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(3, jnp.float32)}
    seen = []

    def keep(learning_rate: Any) -> optax.GradientTransformation:
        del learning_rate

        def update(grads: Any, state: Any, params: Any = None) -> Any:
            del params
            seen.append(grads["b"].weak_type)
            return grads, state

        return optax.GradientTransformation(lambda _: (), update)

    tx = inject(keep)(learning_rate=0.1)
    tx.update({"w": params["w"], "b": weak}, tx.init(params), params)
    assert seen[-1]


def test_an_inner_init_may_need_numbers() -> None:
    """It is called with arrays in init. In update stock does not call it."""

    def factory(learning_rate: Any) -> Any:
        def init(params: Any) -> Any:
            return {"norm": jnp.float32(float(sum(jnp.sum(p) for p in leaves(params))))}

        def update(grads: Any, state: Any, _: Any = None) -> Any:
            return tree_map(lambda g: -learning_rate * g, grads), state

        return optax.GradientTransformation(init, update)

    tx = optax.inject_hyperparams(factory)(lambda _: jnp.float32(0.5))
    params = {"w": jnp.ones((2,), jnp.bfloat16), "b": jnp.ones((2,), jnp.float32)}
    updates, _ = tx.update(params, tx.init(params), params)
    assert {name: u.dtype for name, u in updates.items()} == {
        "w": jnp.bfloat16,
        "b": jnp.float32,
    }


@pytest.mark.thorough
@pytest.mark.skipif(optax.__version__ != TESTED[-1], reason="one compiler to count with")
def test_init_compiles_no_more_than_stock() -> None:
    source = """
        import logging, optax_dtypefix, jax, jax.numpy as jnp, optax

        params, compiled = jnp.ones(3), []
        handler = logging.Handler()
        handler.emit = lambda record: compiled.append(record.getMessage())
        jax.config.update("jax_log_compiles", True)
        logging.getLogger("jax._src.interpreters.pxla").addHandler(handler)
        optax.inject_hyperparams(optax.adam)(1e-3).init(params)
        print(sum(text.startswith("Compiling") for text in compiled))
    """
    ways = [start("-c", textwrap.dedent(source), **way) for way in (STOCK, PATCHED)]
    stock, patched = (int(stdout_of(done)) for done in finish(ways))
    assert patched == stock > 0


@pytest.mark.thorough
@pytest.mark.skipif("mu_dtype" not in inspect.signature(optax.adam).parameters, reason="0.1.2")
def test_a_dtype_that_was_asked_for_holds_in_a_mixed_tree_without_other_patches() -> None:
    others = {patch.id for patch in optax_dtypefix.status()} - {"inject_hyperparams"}
    params = {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(3, jnp.float32)}
    with optax_dtypefix.disabled(*others):
        make = optax.inject_hyperparams(optax.adam, static_args=("mu_dtype",))
        tx = make(1e-3, mu_dtype=jnp.float32)
        updates, _ = tx.update(params, tx.init(params), params)
    assert {leaf.dtype for leaf in updates.values()} == {jnp.dtype(jnp.float32)}
