from __future__ import annotations

import functools
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

import optax_dtypefix
from support.compiled import compiled_step
from support.nodes import Converting
from support.patch_cases import FuzzCase, Program
from support.processes import run, stdout_of
from support.python_calls import calls_into_the_shim
from support.thorough import one_of
from support.trees import in_float64

if TYPE_CHECKING:
    from support.fuzzing import Draw


# Old releases call deprecated functions of JAX.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def fuzzed(draw: Draw) -> Any:
    return optax.sgd(draw.rate())


FUZZ = FuzzCase(fuzzed)
PROGRAMS = {"sgd": Program(lambda: optax.sgd(0.1), jnp.bfloat16)}

HALVES = pytest.mark.parametrize(
    "dtype", one_of(2, [jnp.bfloat16, jnp.float16]), ids=["bf16", "f16"]
)
STEPS = 8000


def unit(params: Any) -> Any:
    """Return the distance of half-precision numbers to the next one."""
    return np.asarray(np.spacing(np.asarray(params)), np.float64)


def normal(size: Any, dtype: Any = jnp.float32, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=size), dtype)


@pytest.mark.rule("C4")
@HALVES
def test_sums_are_right_on_average(dtype: Any) -> None:
    params = jnp.asarray(np.random.default_rng(1).uniform(1, 1.9, size=(40, 25)), dtype)
    updates = 1e-3 * normal((40, 25))
    apply = jax.jit(optax.apply_updates)
    # Updates that differ by little: the bits of each step are others, and the sum nearly the same.
    factors = np.linspace(1, 1.001, 100)
    errors = [
        in_float64(apply(params, updates * factor))
        - (in_float64(params) + in_float64(updates * factor))
        for factor in factors
    ]
    in_units = np.asarray(errors) / unit(params)
    assert np.abs(in_units).max() <= 1
    assert abs(in_units.mean()) < 0.01
    assert np.abs(in_units.mean(0)).max() < 0.25  # Five times the spread of 100 roundings.


@HALVES
def test_averages_are_right_on_average(dtype: Any) -> None:
    new, old = (jnp.asarray(1 + np.random.default_rng(i).random((40, 25)), dtype) for i in (0, 1))
    update = jax.jit(optax.incremental_update)
    errors = []
    for step_size in np.linspace(1e-3, 2e-3, 30):
        exact = step_size * in_float64(new) + (1 - step_size) * in_float64(old)
        errors.append((in_float64(update(new, old, step_size)) - exact) / unit(old))
    assert np.abs(errors).max() <= 1
    assert abs(np.mean(errors)) < 0.01


@pytest.mark.rule("C4")
@pytest.mark.parametrize(
    ("tx", "steps"),
    [
        (lambda: optax.sgd(1e-3), 12_000),
        (lambda: optax.sgd(3e-3), 6_000),
        (lambda: optax.MultiSteps(optax.sgd(0.1), 21), 6_000),
    ],
    ids=["sgd(1e-3)", "sgd(3e-3)", "MultiSteps"],
)
def test_params_of_a_quadratic_end_where_they_should(tx: Any, steps: int) -> None:
    """The gradient follows the param, so all weights could be shifted together."""
    target = jnp.asarray(np.random.default_rng(0).uniform(1, 1.9, size=4096), jnp.float32)

    def step(carry: Any, _: None) -> Any:
        params, state = carry
        updates, state = built.update(params.astype(jnp.float32) - target, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), (params.astype(jnp.float32) - target).mean()

    built = tx()
    params = target.astype(jnp.bfloat16)
    scan = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=steps)[1])
    errors = np.asarray(scan((params, built.init(params))), np.float64)
    assert abs(errors[steps // 2 :].mean()) / 2.0**-7 < 0.05


@HALVES
def test_what_is_exact_stays(dtype: Any) -> None:
    largest = float(jnp.finfo(dtype).max)
    numbers = [0.0, -0.0, 1.5, -3.0, largest, -largest, np.inf, -np.inf, np.nan]
    params = [jnp.asarray(numbers, dtype), normal(9, dtype)]
    zeros = [jnp.full(9, -0.0, dtype)] * 2
    for found in (
        optax.apply_updates(params, zeros),
        jax.jit(optax.apply_updates)(params, zeros),
        optax.incremental_update(params, params, 0.3),
        jax.jit(optax.incremental_update)(params, params, 0.3),
    ):
        for leaf, before in zip(found, params):
            assert leaf.tobytes() == before.tobytes() or np.isnan(in_float64(before)).any()
            np.testing.assert_array_equal(in_float64(leaf), in_float64(before))


@HALVES
def test_updates_of_master_weights_land_where_they_should(dtype: Any) -> None:
    params = {"w": normal((30, 20), dtype)}
    tx = optax_dtypefix.master_weights(optax.adam(1e-3))
    state = tx.init(params)
    for seed in range(5):
        grads = {"w": normal((30, 20), dtype, seed)}
        updates, state = jax.jit(tx.update)(grads, state, params)
        params = optax.apply_updates(params, updates)
        rounded = state.master["w"].astype(dtype)
        np.testing.assert_array_equal(in_float64(params["w"]), in_float64(rounded))


def test_other_leaves_are_stock_s() -> None:
    params = {
        "half": normal(4, jnp.bfloat16),
        "single": normal(4),
        "integer": jnp.arange(4),
        "complex": normal(4) * (1 + 2j),
        "none": None,
        "number": 2.0,
        "half of a complex update": normal(4, jnp.bfloat16),
    }
    updates = {
        name: None if name == "none" else normal(4) * (1j if "complex" in name else 1)
        for name in params
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Stock drops the imaginary part.
        found = optax.apply_updates(params, updates)
        stock = optax_dtypefix.original(optax.apply_updates)(params, updates)
    for name in params.keys() - {"half", "none"}:
        assert found[name].dtype == stock[name].dtype
        np.testing.assert_array_equal(found[name], stock[name])
    assert found["none"] is None
    assert found["half"].dtype == jnp.bfloat16


@pytest.mark.rule("C5")
def test_a_program_without_halves_is_stock_s() -> None:
    tree = {"w": jnp.ones((3, 4)), "n": jnp.arange(3)}
    for function, args in (
        (optax.apply_updates, (tree, tree)),
        (optax.incremental_update, (tree, tree, 0.1)),
    ):
        texts = [
            str(jax.make_jaxpr(f)(*args)) for f in (function, optax_dtypefix.original(function))
        ]
        assert texts[0] == texts[1]


def test_leaves_that_are_no_halves_take_one_look_each() -> None:
    """Then stock gets the whole trees. Eager steps make these calls each time."""
    tree = {str(index): jnp.ones(3) for index in range(20)}
    for function, args in ((optax.apply_updates, ()), (optax.incremental_update, (0.1,))):
        function(tree, tree, *args)  # It loads the file of the patch.
        calls = calls_into_the_shim(lambda f=function, more=args: f(tree, tree, *more))
        assert len(tree) < len(calls) <= 3 * len(tree) + 10, calls


def test_the_errors_of_odd_trees_are_stock_s() -> None:
    half = jnp.ones(3, jnp.bfloat16)
    for params, updates in (
        ([half], [half, half]),
        ({"a": half}, {"b": half}),
        ([half], [None]),
        ([half], [jnp.ones(2)]),
    ):
        messages = []
        for function in (optax.apply_updates, optax_dtypefix.original(optax.apply_updates)):
            with pytest.raises((TypeError, ValueError)) as raised:
                function(params, updates)
            messages.append(type(raised.value))
        assert messages[0] == messages[1]


def test_derivatives_are_stock_s() -> None:
    params, updates = normal(50, jnp.bfloat16), normal(50, jnp.bfloat16, 1)

    def loss(function: Any, args: Any) -> Any:
        return (function(*args).astype(jnp.float32) * normal(50, seed=2)).sum()

    share = jnp.float32(0.3).astype(jnp.bfloat16)
    for function, args in (
        (optax.apply_updates, (params, updates)),
        (optax.incremental_update, (updates, params, share)),
        (optax.incremental_update, (params, params, share)),
    ):
        found, stock = (
            jax.jit(jax.grad(functools.partial(loss, f)))(args)
            for f in (function, optax_dtypefix.original(function))
        )
        for leaf, exact in zip(found, stock):
            assert leaf.dtype == exact.dtype
            np.testing.assert_allclose(
                in_float64(leaf),
                in_float64(exact),
                rtol=2**-6,
                atol=2**-4 if leaf.ndim == 0 else 1e-2,
            )


def test_eager_compiled_scanned_and_checkpointed_steps_are_the_same() -> None:
    params, updates = normal((8, 9), jnp.bfloat16), 1e-3 * normal((8, 9), seed=1)
    eager = params
    for _ in range(3):
        eager = optax.apply_updates(eager, updates)

    def step(params: Any, _: None) -> Any:
        return optax.apply_updates(params, updates), None

    for body in (step, jax.checkpoint(step)):
        scanned, _ = jax.jit(lambda p, f=body: jax.lax.scan(f, p, None, length=3))(params)
        np.testing.assert_array_equal(in_float64(scanned), in_float64(eager))
    donated = jax.jit(optax.apply_updates, donate_argnums=0)(jnp.array(params), updates)
    np.testing.assert_array_equal(
        in_float64(donated), in_float64(optax.apply_updates(params, updates))
    )


def test_members_of_vmap_have_their_own_bits() -> None:
    params, updates = normal((5, 30), jnp.bfloat16), 1e-3 * normal((5, 30), seed=1)
    found = jax.vmap(optax.apply_updates)(params, updates)
    for member in range(5):
        alone = optax.apply_updates(params[member], updates[member])
        np.testing.assert_array_equal(in_float64(found[member]), in_float64(alone))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["", "jit", "remat"])
def test_what_vmap_does_not_map_stays_so(wrap: Any) -> None:
    """Stock's result of an array that all members share is one array, as ``out_axes`` says."""
    if wrap is jax.checkpoint and Version(jax.__version__) < Version("0.4.20"):
        pytest.skip("JAX crashes: checkpoint inside vmap, then clear_caches; without us, too")
    params = {"both": normal((3, 4, 5)), "first": normal((3, 6)), "second": normal((4, 7))}
    params = {**params, "none": normal(8), "number": normal(())}
    params = {name: leaf.astype(jnp.bfloat16) for name, leaf in params.items()}
    updates = {name: leaf * jnp.bfloat16(1e-3) for name, leaf in params.items()}
    outer: dict[str, Any] = {**dict.fromkeys(params), "both": 0, "first": 0}
    inner: dict[str, Any] = {**dict.fromkeys(params), "both": 0, "second": 0}
    once = jax.vmap(wrap(optax.apply_updates), (inner, inner), inner)
    found = jax.vmap(once, (outer, outer), outer)(params, updates)
    assert {name: leaf.shape for name, leaf in found.items()} == {
        name: leaf.shape for name, leaf in params.items()
    }
    again = jax.vmap(once, (outer, outer), outer)(params, {**updates, "both": 2 * updates["both"]})
    for name in params.keys() - {"both"}:
        np.testing.assert_array_equal(in_float64(found[name]), in_float64(again[name]))


def trained(tx: Any, params: Any, grad_of: Any, noise: Any) -> Any:
    """Take a step for each row of the noise, and return the last params in float64."""

    def step(carry: Any, row: Any) -> Any:
        params, state = carry
        updates, state = tx.update(grad_of(params, row), state, params)
        return (optax.apply_updates(params, updates), state), None

    scan = jax.jit(lambda p, rows: jax.lax.scan(step, (p, tx.init(p)), rows)[0][0])
    return in_float64(scan(params, noise))


@pytest.mark.parametrize("count", [1, 3, 10])
def test_few_numbers_move_as_right_as_many(count: int) -> None:
    """Equal gradients, as of full batches: nothing but the counter tells the steps apart."""
    params = jnp.ones(count, jnp.bfloat16)
    found = trained(optax.adam(1e-4), params, lambda *_: params, jnp.zeros(3000))
    np.testing.assert_allclose(found, 0.7, atol=0.1 * 0.3)
    np.testing.assert_allclose(found.mean(), 0.7, atol=0.05 * 0.3)


@pytest.mark.thorough
def test_a_number_alone_follows_noisy_gradients() -> None:
    """Random bits would be .12 off, the root of a sum over 3,000 steps."""
    tx, runs = optax.adam(3e-4), 1 + normal((16, 3000))
    exact, found = (
        np.stack(
            [
                trained(tx, jnp.asarray(4.0, dtype), lambda p, n: n.astype(p.dtype), noise)
                for noise in runs
            ]
        )
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    assert (exact < 3.5).all()
    np.testing.assert_allclose(found.mean() - 4, exact.mean() - 4, rtol=0.05)
    assert np.sqrt(((found - exact) ** 2).mean()) < 0.06


TABLE, ROW = (1501, 24), 777


def distance_of_a_row(tx: Any, dtype: Any, add: Any, seed: int = 0) -> float:
    """Train one row of a table with noise, from its optimum, and return the mean distance to it."""
    noise = 4 * normal((2000, TABLE[1]), seed=1)

    def step(carry: Any, row: Any) -> Any:
        params, state, key = carry
        key, own_key = jax.random.split(key)
        grad = params[ROW].astype(jnp.float32) - 1 + row
        grads = jnp.zeros_like(params).at[ROW].set(grad.astype(params.dtype))
        updates, state = tx.update(grads, state, params)
        params = add(own_key, params, updates)
        others = jnp.any(params.at[ROW].set(1) != 1)
        return (params, state, key), (params[ROW].astype(jnp.float32), others)

    start = jnp.ones(TABLE, dtype)
    carry = start, tx.init(start), jax.random.PRNGKey(seed)
    rows, others = jax.jit(lambda c, n: jax.lax.scan(step, c, n)[1])(carry, noise)
    assert not others.any()
    return float(np.sqrt(((np.asarray(rows[1000:], float) - 1) ** 2).mean()))


def add_by_random_bits(key: Any, params: Any, updates: Any) -> Any:
    exact = params.astype(jnp.float32) + updates.astype(jnp.float32)
    random = jax.random.bits(key, exact.shape, jnp.uint16).astype(jnp.uint32)
    moved = jax.lax.bitcast_convert_type(exact, jnp.uint32) + random
    upper = jax.lax.bitcast_convert_type(moved & jnp.uint32(0xFFFF0000), jnp.float32)
    return upper.astype(jnp.bfloat16)


@pytest.mark.parametrize(
    "build",
    one_of(
        5,
        [
            lambda: optax.sgd(2e-3),
            lambda: optax.adam(2e-3),
            lambda: optax.sgd(2e-4, momentum=0.9),
            lambda: optax.rmsprop(1e-3),
            lambda: optax.sgd(optax.linear_schedule(2e-3, 1e-3, 2000)),
        ],
    ),
    ids=["sgd", "adam", "momentum", "rmsprop", "schedule"],
)
def test_one_row_of_a_table_ends_where_float32_does(build: Any) -> None:
    """No other row moves, as where few tokens are new.

    rmsprop has no counter: there no rounding is better than that of random bits. These end between
    .05 and .084 by the key.
    """

    def add(_: Any, params: Any, updates: Any) -> Any:
        return optax.apply_updates(params, updates)

    tx = build()
    found, exact = (distance_of_a_row(tx, dtype, add) for dtype in (jnp.bfloat16, jnp.float32))
    if found > 1.4 * exact:
        random = (distance_of_a_row(tx, jnp.bfloat16, add_by_random_bits, k) for k in range(4))
        assert found <= max(random)


def test_noise_of_mean_zero_is_not_rectified() -> None:
    """A fixed threshold for each element would let it move to one side alone."""
    noise = 2e-3 * normal((1000, 8), seed=2)
    exact = in_float64(noise.astype(jnp.bfloat16)).sum(0)

    def step(table: Any, row: Any) -> Any:
        updates = jnp.zeros_like(table).at[599].set(row.astype(jnp.bfloat16))
        return optax.apply_updates(table, updates), None

    scan = jax.jit(lambda t: jax.lax.scan(step, t, noise)[0])
    found = in_float64(scan(jnp.ones((600, 8), jnp.bfloat16)))
    # A walk of 1,000 roundings of up to half a unit in the last place.
    assert np.sqrt(((found[599] - 1 - exact) ** 2).mean()) < 0.5 * np.sqrt(1000) * 2.0**-7


def test_rows_without_gradients_decay() -> None:
    """Of a moment without a counter; the first rows of the gradients tell steps apart."""
    rows = normal((1500, 3, 5), seed=3)
    tx = optax.scale_by_rms(decay=0.999)
    params = jnp.ones((40, 5), jnp.bfloat16)
    state = jax.tree_util.tree_map(jnp.ones_like, tx.init(params))

    def step(state: Any, row: Any) -> Any:
        grads = jnp.zeros_like(params).at[:3].set(row.astype(jnp.bfloat16))
        return tx.update(grads, state, params)[1], None

    nu = in_float64(jax.jit(lambda s: jax.lax.scan(step, s, rows)[0])(state).nu)
    np.testing.assert_allclose(nu[3:].mean(), 0.999**1500, rtol=0.05)


def test_moments_without_a_counter_take_that_of_the_chain() -> None:
    """Gradients are zero, so data alone would be the same in each step."""
    params = jnp.ones((6, 5), jnp.bfloat16)
    tx = optax.chain(optax.scale_by_rms(decay=0.999), optax.scale_by_schedule(lambda _: -1e-3))
    state = jax.tree_util.tree_map(lambda x: jnp.ones_like(x) if x.ndim else x, tx.init(params))
    grads = jnp.zeros_like(params)
    for update in (tx.update, jax.jit(tx.update)):  # As a function of the user's inside a chain.
        outer = optax.chain(optax.GradientTransformation(tx.init, update))
        scan = jax.jit(
            lambda s, u=outer.update: jax.lax.scan(
                lambda s, _: (u(grads, s, params)[1], None), s, None, length=1500
            )[0]
        )
        nu = in_float64(scan((state,))[0][0].nu)
        np.testing.assert_allclose(nu, 0.999**1500, rtol=0.05)


def test_averages_of_new_params_are_of_their_step() -> None:
    """Without the step, an average of weights stalls where the params repeat."""
    params = jnp.linspace(1, 1.9, 12).astype(jnp.bfloat16)
    tx = optax.adam(0.0)

    def step(carry: Any, _: None) -> Any:
        params, average, state = carry
        updates, state = tx.update(params, state, params)
        params = optax.apply_updates(params, updates)
        average = optax.incremental_update(params, average, 1e-3)
        return (params, average, state), None

    start = params, jnp.ones_like(params), tx.init(params)
    found = jax.jit(lambda c: jax.lax.scan(step, c, None, length=1500)[0][1])(start)
    exact = in_float64(params) + (1 - in_float64(params)) * 0.999**1500
    np.testing.assert_allclose(in_float64(found), exact, atol=0.03)


def test_what_counts_in_circles_tells_no_steps_apart() -> None:
    """``apply_every`` counts to 3 and begins again: with its bits, each step is rounded alike."""
    params = jnp.linspace(1, 1.9, 200).astype(jnp.bfloat16)
    tx = optax.chain(optax.apply_every(3), optax.sgd(1.0))
    noise = 1e-3 * normal((3000, 200), seed=4)
    found = trained(tx, params, lambda p, row: row.astype(p.dtype), noise)
    exact = in_float64(params) - in_float64(noise.astype(jnp.bfloat16)).sum(0)
    walk = 0.5 * np.sqrt(1000) * 2.0**-7
    assert np.sqrt(((found - exact) ** 2).mean()) < walk


def test_a_state_that_starts_again_does_not_repeat_its_bits() -> None:
    """As in Reptile, where each task begins with ``tx.init``: noise of mean 0 must not add up."""
    tx = optax.adam(5e-4)
    noise = normal((400, 3, 64), seed=6)

    def task(params: Any, rows: Any) -> Any:
        state = tx.init(params)
        for row in rows:
            updates, state = tx.update(row.astype(params.dtype), state, params)
            params = optax.apply_updates(params, updates)
        return params, None

    found, exact = (
        in_float64(jax.jit(lambda p: jax.lax.scan(task, p, noise)[0])(jnp.full(64, 1.5, dtype)))
        for dtype in (jnp.bfloat16, jnp.float32)
    )
    # A walk of 1,200 roundings, of updates of 0.06 units in the last place.
    assert np.sqrt(((found - exact) ** 2).mean()) < 1.5 * np.sqrt(1200 * 0.06) * 2.0**-7


def test_params_that_stay_are_averaged_with_other_bits_each_time() -> None:
    params = optax.apply_updates(
        jnp.full(256, 1.4921875, jnp.bfloat16), jnp.zeros(256, jnp.bfloat16)
    )
    average = jnp.ones(256, jnp.bfloat16)
    for _ in range(400):
        average = optax.incremental_update(params, average, 0.02)
    assert in_float64(average).mean() == pytest.approx(1.4921875, abs=0.01)


def test_updates_that_the_user_changed_have_no_step() -> None:
    """Params of an earlier step are not of this one: its bits would be the same for ever."""
    params, tx = jnp.ones(200, jnp.bfloat16), optax.adam(1e-3)
    updates, _ = tx.update(params, tx.init(params), params)
    params = optax.apply_updates(params, updates)
    first = in_float64(params)
    noise = 1e-3 * normal((300, 200), jnp.bfloat16, seed=5)
    for row in noise:
        params = optax.apply_updates(params, row)
    error = in_float64(params) - first - in_float64(noise).sum(0)
    assert np.sqrt((error**2).mean()) < 0.5 * np.sqrt(300) * 2.0**-7


def outcome(function: Any, *args: Any) -> Any:
    """Return the dtype and shape of what a function returns, or that it raises an error."""
    try:
        leaf = jax.eval_shape(lambda: function(*args))  # Nothing is compiled.
    except (TypeError, ValueError) as error:
        return type(error)
    return leaf.dtype, leaf.shape


def test_dtypes_and_errors_of_any_pair_are_stock_s() -> None:
    half, names = normal(3, jnp.bfloat16), ["int32", "float16", "float32"]
    if Version(jax.__version__) >= Version("0.4.31"):  # Before it, XLA may crash on these.
        names += ["int4", "float8_e4m3fn"]
    others = [jnp.ones(3, getattr(jnp, name)) for name in names if hasattr(jnp, name)]
    others += [normal(2), normal((2, 3)), jnp.asarray(1j), np.int64(1), np.float16(1), 1j, 1, True]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Stock drops the imaginary part.
        for other in others:
            for function, args in (
                (optax.apply_updates, (half, other)),
                (optax.apply_updates, (other, half)),
                (optax.incremental_update, (half, half, other)),
                (optax.incremental_update, (other, half, 0.1)),
            ):
                stock = outcome(optax_dtypefix.original(function), *args)
                assert outcome(function, *args) == stock, (function, other)


@HALVES
def test_the_infinite_makes_no_nan(dtype: Any) -> None:
    """Where each operation is checked, one inside would raise an error."""
    leaf = jnp.asarray([jnp.inf, -jnp.inf, 1.0], dtype)
    try:
        with jax.debug_nans(True), jax.disable_jit():
            found = optax.apply_updates(leaf, leaf)
            average = optax.incremental_update(leaf, leaf, 0.3)
    finally:
        jax.config.update("jax_debug_nans", False)
    np.testing.assert_array_equal(in_float64(found), [np.inf, -np.inf, 2.0])
    np.testing.assert_array_equal(in_float64(average), in_float64(leaf))


def test_equal_elements_differ() -> None:
    found = optax.apply_updates(jnp.ones((20, 20), jnp.bfloat16), jnp.full((20, 20), 2.0**-9))
    assert 70 < (found != 1).sum() < 130


def test_a_step_that_repeats_is_rounded_the_same_way() -> None:
    """Nothing tells the steps apart; ``master_weights`` rounds nothing away."""
    param, grad = jnp.ones((), jnp.bfloat16), jnp.float32(1e-4)
    ways = (optax.sgd(1.0), optax_dtypefix.master_weights(optax.sgd(1.0)))
    moved = []
    for tx in ways:

        def step(carry: Any, _: None, tx: Any = tx) -> Any:
            param, state = carry
            updates, state = tx.update(-grad, state, param)
            return (optax.apply_updates(param, updates), state), None

        scan = jax.jit(lambda c, f=step: jax.lax.scan(f, c, None, length=STEPS)[0][0])
        moved.append(float(scan((param, tx.init(param)))) - 1)
    assert moved == [0, pytest.approx(0.8, abs=2.0**-8)]


@pytest.mark.parametrize("shape", [(64,), (300, 300)])
@pytest.mark.parametrize("with_params", [True, False])
def test_gradients_that_never_change_move_many_numbers(
    shape: tuple[int, ...], with_params: bool
) -> None:
    """Nothing counts, but the corner of the params is another one in each step."""
    grads = jnp.linspace(0.9e-3, 1.1e-3, int(np.prod(shape))).reshape(shape)
    tx = optax.sgd(1.0)

    def step(params: Any, _: None) -> Any:
        updates, _ = tx.update(grads, tx.init(params), params if with_params else None)
        return optax.apply_updates(params, updates), None

    params = jnp.ones(shape, jnp.bfloat16)
    compiled = jax.jit(lambda params: jax.lax.scan(step, params, None, length=100)[0])(params)
    if params.size == 64:
        eager = params
        for _ in range(100):
            eager, _ = step(eager, None)
        np.testing.assert_array_equal(in_float64(eager), in_float64(compiled))
    assert in_float64(compiled).mean() == pytest.approx(0.9, abs=0.004)


@pytest.mark.parametrize(
    ("counted", "crc32"), [(True, 2854293740), (False, 3268293447)], ids=["counted", "data"]
)
def test_the_bits_are_those_of_every_release(counted: bool, crc32: int) -> None:
    """A run that goes on with other versions of optax and jax rounds as before."""
    params = [jnp.linspace(1, 1.75, 4).astype(jnp.bfloat16) + place / 8 for place in range(3)]
    updates = [jnp.float32(2.0**-12) * jnp.arange(1.0, 5)] * 3  # The sums are exact.
    tx = optax.chain(optax.scale(1.0), *([optax.scale_by_schedule(lambda _: 1)] * counted))
    state = tx.init(params)

    def step(params: Any, state: Any) -> Any:
        new, state = tx.update(updates, state, params)
        return optax.apply_updates(params, new), state

    for _ in range(8):
        params, state = jax.jit(step)(params, state)
    assert zlib.crc32(in_float64(jnp.stack(params)).tobytes()) == crc32


def test_nodes_may_convert_their_children() -> None:
    params = Converting(jnp.ones(3, jnp.bfloat16))
    assert isinstance(optax.apply_updates(params, params), Converting)
    assert isinstance(optax.incremental_update(params, params, 0.1), Converting)


def test_an_eager_step_compiles_two_programs_a_shape() -> None:
    count = 0

    def counted(name: str, *_: Any, **__: Any) -> None:
        nonlocal count
        count += name.endswith("backend_compile_duration")

    shapes = [(3, 17), (19,)]
    params = [normal(shape, jnp.bfloat16) for shape in shapes * 10]
    updates = [normal(shape, jnp.bfloat16) for shape in shapes * 10]
    jax.monitoring.register_event_duration_secs_listener(counted)
    optax.apply_updates(params, updates)
    first, count = count, 0
    optax.apply_updates(params, updates)
    assert count == 0
    assert first <= 2 * len(shapes) + 1


@pytest.mark.skipif(
    Version(jax.__version__) < Version("0.10"), reason="older versions of XLA keep 4 bytes more"
)
def test_temporaries_take_at_most_two_bytes_a_param() -> None:
    params = [jnp.ones((512, 256), jnp.bfloat16)] * 4
    tx = optax.adamw(1e-3)
    rounded = compiled_step(tx, params)
    with optax_dtypefix.disabled("stochastic_rounding"):
        jax.clear_caches()
        plain = compiled_step(tx, params)
    jax.clear_caches()
    temporary = [program.memory_analysis().temp_size_in_bytes for program in (rounded, plain)]
    assert (temporary[0] - temporary[1]) / (4 * 512 * 256) <= 2.1


PROGRAM = """
import hashlib
import optax_dtypefix, jax, jax.numpy as jnp, numpy as np, optax
from jax._src import xla_bridge
from jax.sharding import Mesh, NamedSharding, PartitionSpec

tx, abstract = optax.rmsprop(0.1), jax.ShapeDtypeStruct((4,), jnp.bfloat16)
state = jax.eval_shape(tx.init, abstract)
new, _ = jax.eval_shape(tx.update, abstract, state, abstract)
jax.eval_shape(optax.apply_updates, abstract, new)
assert not xla_bridge._backends, "jax.distributed.initialize would be too late"

random = np.random.default_rng(0)
params = {"w": random.normal(size=(16, 8)), "b": random.normal(size=8)}
params = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params)
updates = jax.tree_util.tree_map(lambda leaf: leaf * 1e-3, params)

def shown(tree):
    leaves = jax.tree_util.tree_leaves(tree)
    return hashlib.md5(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()

print(shown(jax.jit(optax.apply_updates)(params, updates)))
mesh = Mesh(np.array(jax.devices()), ("x",))
spread = jax.device_put((params, updates), NamedSharding(mesh, PartitionSpec("x")))
print(shown(jax.jit(optax.apply_updates)(*spread)))
count = jax.device_count()
copies = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * count), (params, updates))
copies = jax.pmap(optax.apply_updates)(*copies)
assert len({shown(jax.tree_util.tree_map(lambda leaf: leaf[i], copies)) for i in range(count)}) == 1

spec = {"w": PartitionSpec("x"), "b": PartitionSpec()}
both = (spec, spec)

def all_equal(leaf):
    return len({np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards}) == 1

if hasattr(jax, "shard_map"):
    mapped = [(jax.shard_map, "check_vma", check) for check in (True, False)]
else:
    from jax.experimental.shard_map import shard_map
    # Before jax 0.4.21 it has no rule for iota.
    mapped = [(shard_map, "check_rep", check) for check in (CHECKED, False)]
for shard_map, name, check in mapped:
    for function in (optax.apply_updates, jax.jit(optax.apply_updates)):
        done = shard_map(function, mesh=mesh, in_specs=both, out_specs=spec, **{name: check})
        assert all_equal(jax.jit(done)(params, updates)["b"]), (name, check)
rows = [{"w": tree["w"][:count], "b": tree["b"]} for tree in (params, updates)]
axes = {"w": 0, "b": None}
beside = jax.pmap(optax.apply_updates, in_axes=(axes, axes))(*rows)
assert all_equal(beside["b"])
"""


@pytest.mark.thorough
def test_processes_devices_and_replicas_agree() -> None:
    """Also those of an array that is replicated beside one that is not."""
    flag = "--xla_force_host_platform_device_count="
    checked = str(Version(jax.__version__) >= Version("0.4.21"))
    program = PROGRAM.replace("CHECKED", checked)
    lines = [
        line
        for count in "18"
        for line in stdout_of(
            run(
                "-c",
                program,
                XLA_FLAGS=flag + count,
            )
        ).split()
    ]
    assert len(lines) == 4
    assert len(set(lines)) == 1


def test_params_move_as_far_as_their_updates_in_the_first_steps_of_a_state() -> None:
    """An element's own data count there, and are others after each move."""
    for rate in (1e-4, 1e-3):
        tx = optax.sgd(optax.constant_schedule(rate))
        params = jnp.full((128, 64), 1.5, jnp.bfloat16)
        step = jax.jit(functools.partial(one_step, tx))
        moved, state = params, tx.init(params)
        for count in range(1, 151):
            moved, state = step(moved, state)
            if count in (50, 150):
                mean = np.mean(np.asarray(params, np.float64) - np.asarray(moved, np.float64))
                np.testing.assert_allclose(mean, count * rate, rtol=0.05)


def one_step(tx: Any, params: Any, state: Any) -> Any:
    updates, state = tx.update(jnp.ones_like(params), state, params)
    return optax.apply_updates(params, updates), state
