"""How the moments of a state are rounded to half precision."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

from optax_dtypefix._contract.bits import bits_of_step
from optax_dtypefix._contract.moments import ROUNDINGS, _round_to_half, round_moments
from optax_dtypefix._contract.rounding import (
    Rounding,
    dither,
    dither_above_zero,
    dither_alike,
    dither_within_root,
    round_above_zero,
)
from optax_dtypefix._contract.state import cast_back
from optax_dtypefix._contract.x64 import x64
from support.builders import stock_of
from support.moments import adam_step
from support.processes import run, stdout_of
from support.thorough import one_of
from support.trees import tree_map

HALVES = pytest.mark.parametrize(
    "dtype", one_of(2, [jnp.bfloat16, jnp.float16]), ids=["bf16", "f16"]
)
TINY = 2.0**-24  # The smallest number above zero in float16.
SIZES = np.exp(np.linspace(np.log(1e-12), np.log(6e4), 5000)).astype(np.float32)


def rounded(how: Rounding, x: Any, old: Any = 0.0, step: int = 0, dtype: Any = jnp.float16) -> Any:
    """Round to half precision, and return the result in float64."""
    before = jnp.broadcast_to(jnp.asarray(old, dtype), np.shape(x))
    return np.asarray(
        _round_to_half(how, jnp.asarray(x, jnp.float32), before, bits_of_step(step)), float
    )


def mean_over_steps(how: Rounding, dtype: Any) -> Any:
    return np.mean([rounded(how, SIZES, step=step, dtype=dtype) for step in range(500)], axis=0)


def unit(dtype: Any) -> Any:
    least = TINY if dtype == jnp.float16 else 0.0
    eps = float(jnp.finfo(dtype).eps)
    return np.maximum(2.0 ** np.floor(np.log2(SIZES.astype(float))) * eps, least)


@HALVES
def test_dithering_keeps_the_mean(dtype: Any) -> None:
    for how in (dither, dither_above_zero):
        # Means below 6e-5 are rounded to nearest in float16, squares to 6e-8 or more.
        known = (0 if dtype == jnp.bfloat16 else 2.0**-14 if how is dither else TINY) < SIZES
        error = np.abs(mean_over_steps(how, dtype) - SIZES)
        assert (error[known] <= 0.01 * unit(dtype)[known]).all()


def test_squares_are_never_zero_in_float16() -> None:
    assert (mean_over_steps(dither_above_zero, jnp.float16)[SIZES <= TINY] == TINY).all()
    assert rounded(dither_above_zero, 0.0) == 0


def test_a_maximum_does_not_depend_on_the_step() -> None:
    """It would find the highest turn."""
    for step in (1, 2, 3):
        got = rounded(round_above_zero, SIZES[SIZES > TINY], step=step)
        np.testing.assert_array_equal(got, SIZES[SIZES > TINY].astype(np.float16))


@HALVES
@pytest.mark.parametrize("name", ["scale_by_rms", "scale_by_rss", "trace"])
def test_without_a_counter_a_moment_moves_in_proportion(name: str, dtype: Any) -> None:
    random = np.random.default_rng(0)
    moves = random.uniform(-2, 2, 100_000)  # In units in the last place of 1.5.
    unit = float(jnp.finfo(dtype).eps)
    old = getattr(optax, name)(*([0.9] if name == "trace" else [])).init(
        jnp.ones(moves.shape, dtype)
    )
    (field,) = ROUNDINGS[type(old).__name__]
    old = old._replace(**{field: jnp.full(moves.shape, 1.5, dtype)})
    new = round_moments(old._replace(**{field: jnp.asarray(1.5 + moves * unit, jnp.float32)}), old)
    got = (np.asarray(getattr(new, field), float) - 1.5) / unit
    assert (np.abs(got - moves) < 1.001).all()
    for low in np.arange(-2, 2, 0.25):
        window = (moves > low) & (moves < low + 0.25)
        np.testing.assert_allclose(got[window].mean(), moves[window].mean(), atol=0.02)


def test_where_the_least_and_the_largest_count_rounding_commutes_with_both() -> None:
    """As in sm3, whose accumulators are maxima, of which it takes the minima."""
    x, old = (jnp.asarray(SIZES.reshape(50, 100)), jnp.zeros((50, 100), jnp.bfloat16))
    for bits in (jnp.int32(7), jnp.int32(2**15 + 9)):
        whole, rows = (
            np.asarray(_round_to_half(dither_alike, wide, narrow, bits), float)
            for wide, narrow in ((x, old), (x.max(1), old[:, 0]))
        )
        np.testing.assert_array_equal(whole.max(1), rows)
    # If no element moves, those move that do so on stock: nothing else tells the next step apart.
    old = jnp.full(3, 256.0, jnp.bfloat16)
    got = _round_to_half(dither_alike, jnp.asarray([256.1, 256.9, 257.1]), old, jnp.int32(0))
    np.testing.assert_array_equal(np.asarray(got, float), [256, 256, 258])


@HALVES
def test_step_0_rounds_to_nearest(dtype: Any) -> None:
    """So what ``init`` stores is as close as on stock."""
    x = SIZES[SIZES > TINY]
    expected = np.asarray(jnp.asarray(x, dtype), float)
    odd = np.abs(rounded(dither_above_zero, x, dtype=dtype) - expected) > 0
    assert odd.mean() < 0.001  # Halves are rounded up, not to even.


@HALVES
def test_a_mean_square_is_never_below_the_square_of_the_rounded_mean(dtype: Any) -> None:
    x = jnp.asarray(SIZES[SIZES > 1e-6])
    state = optax.scale_by_stddev().init(jnp.zeros(x.shape, dtype))
    got = round_moments(state._replace(mu=x, nu=jnp.square(x)), state)
    mean, square = (np.asarray(leaf, float) for leaf in (got.mu, got.nu))
    assert (mean**2 <= square).all()
    normal = (np.asarray(x) > 2.0**-14) & (np.asarray(x) < 250)
    np.testing.assert_allclose(mean[normal], x[normal], rtol=float(jnp.finfo(dtype).eps))


def test_the_table_names_fields_of_optax() -> None:
    """On each release: what the table names is there, or its class is not."""
    found = {}
    for module in (optax, getattr(optax, "contrib", optax)):
        found.update({name: value for name, value in vars(module).items() if name in ROUNDINGS})
    assert {"ScaleByAdamState", "ScaleByRmsState", "EmaState"} <= {*found}
    for name, state in found.items():
        assert {*ROUNDINGS[name]} <= {*state._fields}, name


@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
def test_moments_in_float64_are_rounded_as_float32_ones(dtype: Any) -> None:
    """As in a step of float64 params whose state was restored in half precision."""
    with x64():
        old, x = jnp.ones((3, 4), dtype), np.full((3, 4), 1.3)
        for how in (dither, dither_above_zero, dither_within_root, round_above_zero):
            wide, narrow = (
                _round_to_half(how, jnp.asarray(x, d), old, bits_of_step(7))
                for d in (jnp.float64, jnp.float32)
            )
            np.testing.assert_array_equal(np.asarray(wide, float), np.asarray(narrow, float))


@pytest.mark.thorough
def test_the_counter_may_be_on_another_device_than_a_moment() -> None:
    """As in a restored state of layers that are on two devices: lion does not mix them."""
    code = (
        "import jax, jax.numpy as jnp, optax, optax_dtypefix\n"
        "one, two = jax.devices()\n"
        "tx, p = optax.ema(0.9, debias=False), jax.device_put(jnp.ones(3, jnp.bfloat16), two)\n"
        "state = tx.init(p)\n"
        "state = state._replace(count=jax.device_put(state.count, one))\n"
        "updates, _ = tx.update(p, state)\n"
        "print(updates.devices() == {two})"
    )
    flags = "--xla_force_host_platform_device_count=2"
    assert stdout_of(run("-W", "ignore", "-c", code, XLA_FLAGS=flags)) == "True\n"


def test_a_state_inside_another_is_rounded_by_turns_too() -> None:
    contrib = pytest.importorskip("optax.contrib")
    if not hasattr(contrib, "schedule_free"):
        assert Version(optax.__version__) < Version("0.2.3")
        pytest.skip("schedule_free came with optax 0.2.3")
    tx = contrib.schedule_free(optax.adam(1.0), learning_rate=1.0)
    old = tx.init({"w": jnp.ones((3,), jnp.bfloat16)})
    exact = 1 + 2.0**-10
    wide = tree_map(lambda x: jnp.full(x.shape, exact) if x.ndim else x, old)
    seen = set()
    for count in range(20):
        (adam, *rest) = wide.base_optimizer_state
        adam = adam._replace(count=jnp.asarray(count, jnp.int32))
        new = cast_back(wide._replace(base_optimizer_state=(adam, *rest)), old)
        seen.add(float(new.base_optimizer_state[0].nu["w"][0]))
    assert seen == {1.0, 1 + 2.0**-7}


def test_a_state_of_the_users_own_is_left_alone() -> None:
    import collections

    own = collections.namedtuple("ScaleByAdamState", ["count", "mu", "nu"])
    old = own(1, jnp.ones(2, jnp.bfloat16), "text")
    new = own(2, jnp.ones(2), "text")
    assert round_moments(new, old).mu.dtype == jnp.float32


@pytest.mark.thorough
@pytest.mark.rule("C4")
def test_gradients_that_repeat_give_no_coherent_error() -> None:
    """Every element has the same bits in one step. 20 times larger gradients come periodically."""
    random = np.random.default_rng(0)
    periods = (2, 3, 5, 8, 13, 21)
    gradients = random.normal(size=(3000, len(periods), 16))
    for at, period in enumerate(periods):
        gradients[::period, at] *= 20
    exact = np.asarray(jnp.asarray(gradients, jnp.bfloat16), float)
    tx = optax.scale_by_adam(b2=0.999)
    param = jnp.zeros(exact.shape[1:], jnp.bfloat16)

    def step(state: Any, grads: Any) -> Any:
        after = tx.update(grads.astype(jnp.bfloat16), state, param)[1]
        return after, after.nu

    scan = jax.jit(lambda g: jax.lax.scan(step, tx.init(param), g)[1])
    nu = np.asarray(scan(jnp.asarray(exact, jnp.bfloat16)), float)
    moment, errors = np.zeros(exact.shape[1:]), []
    for gradient, stored in zip(exact, nu):
        moment = 0.999 * moment + 0.001 * gradient**2
        errors.append(np.sqrt(moment / stored) - 1)
    late = np.stack(errors[1000:])
    assert np.sqrt((late**2).mean()) < 0.02
    assert np.abs(late.mean(2)).max() < 0.03  # Of all elements, in one step.


def adam_with_a_period(
    betas: tuple[float, float], period: Any, large: Any, base: Any
) -> tuple[Any, Any]:
    """Return the last 21 of 3,000 updates of scale_by_adam, and those in float64, for each cell.

    Each ``period``-th gradient is ``large`` times as large as the others, and both are bfloat16.
    """
    steps, tx = 3000, optax.scale_by_adam(*betas)
    small, big = (np.asarray(jnp.asarray(x, jnp.bfloat16), float) for x in (base, large * base))

    def updates_of(period: Any, small: Any, big: Any) -> Any:
        param = jnp.ones((), jnp.bfloat16)

        def step(state: Any, count: Any) -> tuple[Any, Any]:
            gradient = jnp.where(count % period == 0, big, small).astype(jnp.bfloat16)
            updates, after = tx.update(gradient, state, param)
            return after, updates.astype(jnp.float32)

        state = jax.lax.fori_loop(1, steps - 20, lambda n, s: step(s, n)[0], tx.init(param))
        return jax.lax.scan(step, state, jnp.arange(steps - 20, steps + 1))[1]

    given = (jnp.asarray(period), *(jnp.asarray(x, jnp.float32) for x in (small, big)))
    got = np.asarray(jax.jit(jax.vmap(updates_of))(*given), float)
    m, v, expected = np.zeros(len(small)), np.zeros(len(small)), []
    for count in range(1, steps + 1):
        gradient = np.where(count % period == 0, big, small)
        direction, m, v = adam_step(gradient, m, v, count, betas)
        expected.append(direction)
    return got, np.stack(expected[-21:], axis=1)


@pytest.mark.rule("C4")
def test_gradients_with_a_short_period_do_not_lock_to_the_bits() -> None:
    """Stock is up to 63 % off, and multiples of the golden ratio are 8 % off."""
    cells = ([3, 4], [5, 3], [1, 1.735])
    got, exact = adam_with_a_period((0.9, 0.999), *map(np.asarray, cells))
    for right, *rows in (
        ([0.776, 0.732, 0.825], got[0], exact[0]),
        ([0.879, 0.849, 0.822, 0.912], got[1], exact[1]),
    ):
        found, expected = (row[-len(right) :] for row in rows)
        np.testing.assert_allclose(expected, right, atol=1e-3)
        np.testing.assert_allclose(found, right, rtol=0.04)
    grid = np.meshgrid(np.arange(2, 22), [1.5, 2, 3, 5, 10, 20, 50, 100], 1 + np.arange(16) / 16)
    periods, *rest = map(np.ravel, grid)
    of_period = np.arange(21) >= 21 - periods[:, None]  # Each update of the last period.
    errors = []
    for betas in ((0.9, 0.999), (0.95, 0.95)):
        got, exact = adam_with_a_period(betas, periods, *rest)
        errors.append(np.where(of_period, np.abs(got / exact - 1), 0).max(1))
    assert np.max(errors) < 0.06
    assert np.quantile(errors, 0.99) < 0.035


def test_no_period_up_to_256_locks_to_the_bits() -> None:
    """As of an epoch of 41 batches: 41 parts of bits lock to it, and updates are 8 to 17 % off."""
    random = np.random.default_rng(0)
    periods = np.asarray([8, 16, 40, 41, 64, 82, 123, 128, 205, 246, 256] * 30)
    batches = random.normal(size=(len(periods), 256))
    spread = np.sign(batches) * np.exp(1.5 * random.normal(size=batches.shape))
    batches = np.where(np.arange(len(periods))[:, None] % 2, batches, spread)
    batches = jnp.asarray(batches, jnp.bfloat16)
    tx, steps = optax.scale_by_adam(), 4000

    def moments_of(period: Any, batches: Any) -> Any:
        def step(state: Any, count: Any) -> tuple[Any, Any]:
            after = tx.update(batches[count % period], state, batches[0])[1]
            return after, after.nu

        state = jax.lax.fori_loop(1, steps - 255, lambda n, s: step(s, n)[0], tx.init(batches[0]))
        return jax.lax.scan(step, state, jnp.arange(steps - 255, steps + 1))[1]

    got = np.asarray(jax.jit(jax.vmap(moments_of))(jnp.asarray(periods), batches), float)
    squares, moment, expected = np.asarray(batches, float) ** 2, np.zeros(len(periods)), []
    for count in range(1, steps + 1):
        moment = 0.999 * moment + 0.001 * squares[np.arange(len(periods)), count % periods]
        expected.append(moment)
    off = np.abs(np.sqrt(got / np.stack(expected[-256:], axis=1)) - 1)
    of_period = np.arange(256) >= 256 - periods[:, None]
    assert np.quantile(np.where(of_period, off, 0).max(1), 0.99) < 0.045


def divided_by_root(grads: Any, decay: float | None) -> Any:
    """Divide gradients by the root of their mean square, or sum, in float64.

    The axes are runs, steps and elements.
    """
    square, rows = np.full(grads[:, 0].shape, 0.1 if decay is None else 0.0), []
    for row in np.moveaxis(grads, 1, 0):
        new = row**2 if decay is None else (1 - decay) * row**2
        square = (1.0 if decay is None else decay) * square + new
        rows.append(row / np.sqrt(square + (1e-7 if decay is None else 1e-8)))
    return np.stack(rows, axis=1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("decay", "bursts", "most"),
    [(0.999, False, 0.025), (0.999, True, 0.05), (0.99, True, 0.05), (None, False, 0.03)],
    ids=["rms(0.999)", "rms(0.999) in bursts", "rms(0.99) in bursts", "rss"],
)
def test_moments_without_a_counter_follow_float64(
    decay: float | None, bursts: bool, most: float
) -> None:
    """Bursts are gradients 100 times as large, in each 200th step or so.

    With bits of each element alone, as in 1.1.0, all but the second are 4 to 9 % off.
    """
    random, runs, steps = np.random.default_rng(0), 4, 3000
    grads = random.normal(size=(runs, steps, 16))
    if bursts:
        grads *= np.where(random.random((runs, steps, 1)) < 1 / 200, 100, 1)
    half = jnp.asarray(grads, jnp.bfloat16)
    exact = divided_by_root(np.asarray(half, float), decay)[:, steps // 3 :]
    build, args = (optax.scale_by_rss, ()) if decay is None else (optax.scale_by_rms, (decay,))

    def errors(tx: Any) -> Any:
        """Return the mean error of the updates of each 100 late steps, relative to their mean."""
        param = jnp.ones(16, jnp.bfloat16)

        def step(state: Any, row: Any) -> Any:
            updates, state = tx.update(row, state, param)
            return state, updates.astype(jnp.float32)

        scan = jax.jit(jax.vmap(lambda rows: jax.lax.scan(step, tx.init(param), rows)[1]))
        late = np.asarray(scan(half), float)[:, steps // 3 :]
        wrong, right = (np.abs(x).reshape(runs, 20, -1).sum(2) for x in (late - exact, exact))
        return wrong / right

    found, stock = errors(build(*args)), errors(stock_of(build)(*args))
    assert found.max() <= most
    assert (found <= stock).all()
    assert stock.max() > 0.2
