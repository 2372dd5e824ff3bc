from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

from optax_dtypefix._contract.x64 import x64
from support import trees
from support.contract import assert_keeps_the_contract, float64_in
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.transformations import with_value
from support.trees import dtypes_of, tree_map, tree_of

reduce_on_plateau = getattr(getattr(optax, "contrib", None), "reduce_on_plateau", None)
pytestmark = pytest.mark.skipif(
    reduce_on_plateau is None, reason="reduce_on_plateau came with optax 0.1.8"
)
OPTIONS = inspect.signature(reduce_on_plateau).parameters if reduce_on_plateau else {}
LOSS = "value" if "accumulation_size" in OPTIONS else "loss"  # The argument is `loss` up to 0.2.1.
FOLLOWS = Version(optax.__version__) >= Version("0.2.4")  # All scalars are float32 before.
STEPS = 400

needs_accumulation = pytest.mark.skipif(
    "accumulation_size" not in OPTIONS, reason="accumulation_size came with optax 0.2.2"
)
needs_min_scale = pytest.mark.skipif(
    "min_scale" not in OPTIONS, reason="min_scale came with optax 0.2.3"
)

FUZZ = FuzzCase(
    lambda draw: reduce_on_plateau(
        factor=draw.of(0.5, 0.1), patience=draw.of(1, 5), cooldown=draw.of(0, 2)
    ),
    "contrib.reduce_on_plateau",
    takes_value=True,
)


def with_loss(**options: Any) -> Any:
    return with_value(reduce_on_plateau(**options), name=LOSS)


PROGRAMS = {
    # From 0.2.4 to 0.2.6 the types of the state are weak on stock.
    "defaults": Program(
        lambda: with_loss(patience=1, cooldown=1), releases=">=0.1.8", same="compiled"
    ),
    "mean": Program(
        lambda: with_loss(patience=1, accumulation_size=2), releases=">=0.2.2", same="compiled"
    ),
    "least": Program(
        lambda: with_loss(factor=0.5, patience=1, min_scale=0.4),
        releases=">=0.2.3",
        same="compiled",
    ),
    "bfloat16": Program(
        lambda: reduce_on_plateau(patience=10), jnp.bfloat16, ">=0.1.8", same="state"
    ),
}


def scale_of(state: Any) -> Any:
    return state.scale if LOSS == "value" else state.lr


def best_of(state: Any) -> Any:
    return state.best_value if LOSS == "value" else state.best_loss


def reference(losses: Any, patience: int, cooldown: int = 0, size: int = 1) -> Any:
    """Return the scale and the best mean loss after each step, in float64."""
    scale, best, bad, cooling, seen = 1.0, np.inf, 0, 0, []
    for loss in np.asarray(losses, np.float64):
        seen.append(loss)
        if len(seen) == size:
            mean, seen = np.mean(seen), []
            better = mean < (1 - 1e-4) * best
            best, bad = (mean, 0) if better else (best, bad + 1)
            if cooling > 0:
                bad, cooling = 0, cooling - 1
            elif bad == patience:
                scale, bad, cooling = scale * 0.1, 0, cooldown
        yield scale, best


def assert_rounded(scale: Any, exact: Any) -> None:
    """Check that a scale is a number, rounded once to the dtype of the scale."""
    rounded = np.asarray(exact).astype(scale.dtype)
    np.testing.assert_allclose(*(np.asarray(x, np.float64) for x in (scale, rounded)), rtol=1e-5)


def run(tx: Any, params: Any, losses: Any) -> Any:
    """Return the state after each step."""

    def step(state: Any, loss: Any) -> Any:
        state = tx.update(params, state, params, **{LOSS: loss})[1]
        return state, state

    return jax.jit(lambda: jax.lax.scan(step, tx.init(params), losses)[1])()


REGIMES = {
    **trees.REGIMES,
    "complex leaf": (False, (jnp.float32, jnp.complex64)),
    "half and complex": (False, (jnp.bfloat16, jnp.complex64)),
}


@pytest.mark.parametrize("loss", [1.5, jnp.float32, jnp.float64])
@pytest.mark.parametrize(("wide", "dtypes"), REGIMES.values(), ids=REGIMES)
def test_keeps_the_contract(wide: bool, dtypes: tuple[Any, ...], loss: Any) -> None:
    if loss is jnp.float64 and not wide:
        pytest.skip("there is no float64 in 32-bit mode")
    with x64(wide):
        tx, params = reduce_on_plateau(), tree_of(*dtypes)
        value = jnp.asarray(1.5, loss) if isinstance(loss, type) else loss
        assert_keeps_the_contract(tx, params, extra=lambda _: {LOSS: value})
        state = tx.init(params)
        all_wide = set(dtypes) == {jnp.float64} and FOLLOWS
        expected = jnp.dtype(jnp.float64 if all_wide else jnp.float32)
        assert {*dtypes_of(best_of(state))} == {expected}
        halves = {jnp.bfloat16, jnp.float16} & set(dtypes)
        assert scale_of(state).dtype == (halves.pop() if FOLLOWS and len(halves) == 1 else expected)
        if jnp.float64 not in dtypes and loss is not jnp.float64:
            step = lambda s, p: tx.update(p, s, p, **{LOSS: value})  # noqa: E731
            assert not float64_in(tx.init, params)
            assert not float64_in(step, state, params)


SLOW = 2 * 0.9997 ** np.arange(STEPS)  # Each loss is the best so far.
STEPWISE = 2 * 0.99 ** (np.arange(STEPS) // 30)  # A plateau of 30 steps, then a better one.


@pytest.mark.parametrize("losses", [SLOW, STEPWISE], ids=["slow", "stepwise"])
@pytest.mark.parametrize("dtype", one_of(3, [jnp.float32, jnp.bfloat16, jnp.float16], 1))
@pytest.mark.parametrize("cooldown", [0, 7])
def test_the_scale_follows_float64_at_every_step(losses: Any, dtype: Any, cooldown: int) -> None:
    tx = reduce_on_plateau(patience=20, cooldown=cooldown)
    states = run(tx, tree_of(dtype), jnp.asarray(losses, jnp.float32))
    scales, best = zip(*reference(losses, 20, cooldown))
    assert_rounded(scale_of(states), scales)
    np.testing.assert_allclose(best_of(states), best, rtol=1e-6)


@needs_accumulation
@pytest.mark.parametrize("dtype", one_of(3, [jnp.float32, jnp.bfloat16, jnp.float16], 1))
def test_a_mean_over_300_losses_is_right(dtype: Any) -> None:
    losses = np.random.default_rng(0).uniform(1, 2, 599)
    tx = reduce_on_plateau(accumulation_size=300)
    states = run(tx, tree_of(dtype), jnp.asarray(losses, jnp.float32))
    for first, last in ((0, 299), (300, 599)):
        means = [losses[first : k + 1].mean() for k in range(first, last)]
        np.testing.assert_allclose(states.avg_value[first:last], means, rtol=1e-5)
    np.testing.assert_allclose(states.best_value[-1], losses[:300].mean(), rtol=1e-5)


@needs_accumulation
def test_float64_params_have_a_float64_mean() -> None:
    if not FOLLOWS:
        pytest.skip("up to 0.2.3 the values are always float32")
    with x64():
        losses = np.random.default_rng(0).uniform(1, 2, 99)
        tx = reduce_on_plateau(accumulation_size=100)
        states = run(tx, tree_of(jnp.float64), jnp.asarray(losses))
        np.testing.assert_allclose(states.avg_value[-1], losses.mean(), rtol=1e-14)


@needs_min_scale
@pytest.mark.parametrize("wide", one_of(2, [False, True]))
@pytest.mark.parametrize("dtype", one_of(3, [jnp.float32, jnp.bfloat16, jnp.float16], 1))
def test_arguments_may_be_arrays(dtype: Any, wide: bool) -> None:
    with x64(wide):
        numbers = (np.float32(0.05), np.float64(0.05), jnp.asarray(0.05))
        for least in (*numbers, jnp.asarray(0.05, jnp.float32), jnp.asarray(0.05, jnp.bfloat16)):
            counts = {"patience": jnp.asarray(2), "cooldown": np.asarray(0)}
            tx = reduce_on_plateau(factor=jnp.asarray(0.5), min_scale=least, **counts)
            params = tree_of(dtype)
            assert_keeps_the_contract(tx, params, extra=lambda _: {LOSS: 1.0})
            scale = scale_of(run(tx, params, jnp.ones(20, jnp.float32)))[-1]
            assert scale.dtype == (dtype if FOLLOWS else jnp.float32)
            assert_rounded(scale, float(least))


def test_a_tolerance_in_float16_is_used_in_float32() -> None:
    """In float16 1 - 0.0001 is 1, and each loss would count as better."""
    tx = reduce_on_plateau(rtol=jnp.asarray(1e-4, jnp.float16), patience=2)
    losses = jnp.asarray([1.0, 0.99998, 0.99996], jnp.float32)
    states = run(tx, tree_of(jnp.float16), losses)
    np.testing.assert_array_equal(best_of(states), 1)
    assert_rounded(scale_of(states), [1, 1, 0.1])


@pytest.mark.parametrize("dtype", one_of(3, [jnp.float32, jnp.bfloat16, jnp.float16], 1))
@pytest.mark.parametrize(("options", "last"), [({}, 1.0), ({"rtol": 0.0, "atol": 1e-3}, 0.1)])
def test_a_negative_loss_needs_an_absolute_tolerance(dtype: Any, options: Any, last: float) -> None:
    """optax compares with (1 - rtol) * best, which is above a negative best loss."""
    losses = jnp.full(15, -2.0, jnp.float32)
    states = run(reduce_on_plateau(patience=10, **options), tree_of(dtype), losses)
    assert_rounded(scale_of(states)[-1], last)


def test_updates_are_rounded_once() -> None:
    tx, params = reduce_on_plateau(patience=1), tree_of(jnp.bfloat16)
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(params, state, params, **{LOSS: 1.0})
    assert_rounded(scale_of(state), 0.1)
    for name, grad in params.items():
        expected = (np.float32(0.1) * grad.astype(jnp.float32)).astype(jnp.bfloat16)
        np.testing.assert_array_equal(updates[name], expected)


@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
@pytest.mark.parametrize("factor", [0.1, 0.9, 0.995, 0.9999])
def test_updates_follow_the_powers_of_the_factor(factor: float, dtype: Any) -> None:
    """On stock from 0.2.4 on, the scale is a product of roundings, and may stay 1."""
    tx, params = reduce_on_plateau(factor=factor, patience=1), jnp.ones(1, dtype)
    step = jax.jit(lambda state: tx.update(params.astype(jnp.float32), state, **{LOSS: 1.0}))
    state = tx.init(params)
    for power in range(5):
        updates, state = step(state)
        np.testing.assert_allclose(updates, factor**power, rtol=1e-6)
    if FOLLOWS and factor < 0.99:
        assert scale_of(state).dtype == dtype


def test_a_scale_that_is_no_power_of_the_factor_is_the_users() -> None:
    tx, params = reduce_on_plateau(factor=0.1, patience=1), jnp.ones(1, jnp.bfloat16)
    state, name = tx.init(params), "scale" if LOSS == "value" else "lr"
    for mine, used in ((0.3, float(jnp.bfloat16(0.3))), (0.0, 0.0), (1.0, 1.0), (10.0, 10.0)):
        changed = state._replace(**{name: jnp.asarray(mine, jnp.bfloat16)})
        updates, _ = tx.update(params.astype(jnp.float32), changed, **{LOSS: 1.0})
        np.testing.assert_allclose(updates, used, rtol=1e-6)


# What a user's loop does with the state.


@pytest.mark.skipif(not FOLLOWS, reason="up to 0.2.3 stock's scale is float32")
@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
def test_a_loop_may_multiply_by_the_scale(dtype: Any) -> None:
    """As in optax's own example: other updates are multiplied by the scale of the state."""
    tx = reduce_on_plateau(factor=0.5, patience=1)
    params = jnp.ones(3, dtype)

    def body(carry: Any, _: Any) -> Any:
        params, state = carry
        _, state = tx.update(params, state, params, **{LOSS: 1.0})
        return (params - 0.5 * params * scale_of(state), state), None

    (params, state), _ = jax.lax.scan(body, (params, tx.init(params)), None, length=3)
    assert params.dtype == dtype
    # The first step has a better loss, the next two have none: factors 1/2, 3/4 and 7/8.
    np.testing.assert_array_equal(np.asarray(params, float), 0.5 * 0.75 * 0.875)
    assert float(scale_of(state)) == 0.25


def test_an_integer_leaf_does_not_stop_the_scale() -> None:
    params = tree_of(jnp.float32, jnp.int32)
    states = run(reduce_on_plateau(patience=1), params, jnp.ones(3, jnp.float32))
    np.testing.assert_allclose(scale_of(states), [1, 0.1, 0.01], rtol=1e-6)


def as_from_stock(state: Any) -> Any:
    return tree_map(
        lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float32 else leaf, state
    )


def test_a_loss_is_compared_in_float32_with_a_state_restored_from_stock() -> None:
    """In bfloat16, 0.9985 is 1."""
    tx, params = reduce_on_plateau(), tree_of(jnp.bfloat16)
    state = as_from_stock(tx.init(params))
    for loss in (1.0, 0.9985):
        _, state = tx.update(params, state, params, **{LOSS: loss})
    assert int(state.plateau_count) == 0


def test_the_loss_is_required() -> None:
    tx, params = reduce_on_plateau(), tree_of(jnp.float32)
    with pytest.raises(TypeError):
        tx.update(params, tx.init(params), params)


@pytest.mark.parametrize("dtype", one_of(3, [jnp.bfloat16, jnp.float16, jnp.int8]))
def test_narrow_gradients_of_float32_params_give_float32_updates(dtype: Any) -> None:
    """0.1 times a gradient is rounded to float32, as on stock."""
    tx, params = reduce_on_plateau(patience=1), tree_of(jnp.float32)
    grads = tree_map(lambda p: jnp.asarray(10 * p, dtype), params)
    state = tx.init(params)
    for _ in range(2):
        updates, state = jax.jit(tx.update)(grads, state, params, **{LOSS: 1.0})
    for name, grad in grads.items():
        assert updates[name].dtype == jnp.float32
        exact = 0.1 * np.asarray(grad).astype(np.float64)
        np.testing.assert_allclose(updates[name], exact, rtol=1e-6)


@pytest.mark.parametrize("dtype", one_of(3, [jnp.bfloat16, jnp.float16, jnp.float32]))
def test_without_params_updates_are_as_wide_as_the_gradients(dtype: Any) -> None:
    tx, params = reduce_on_plateau(), tree_of(dtype)
    updates, _ = tx.update(params, tx.init(params), **{LOSS: 1.0})
    assert {*dtypes_of(updates)} == {jnp.dtype(dtype)}


def test_without_params_updates_are_as_wide_as_a_scale_that_is_not_float32() -> None:
    tx, grads = reduce_on_plateau(), tree_of(jnp.float16)
    state = as_from_stock(tx.init(tree_of(jnp.bfloat16)))
    updates, _ = tx.update(grads, state, **{LOSS: 1.0})
    assert {*dtypes_of(updates)} == {jnp.dtype(jnp.float32)}
    with x64():
        state = tx.init(tree_of(jnp.float64))
        updates, _ = tx.update(tree_of(jnp.float32), state, **{LOSS: 1.0})
        assert {*dtypes_of(updates)} == {jnp.dtype(jnp.float64 if FOLLOWS else jnp.float32)}
