from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

from optax_dtypefix._contract.x64 import x64
from support.contract import assert_keeps_the_contract, float64_in
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.training import train
from support.trees import dtypes_of, in_float64, leaves, tree_map, tree_of, types

if TYPE_CHECKING:
    from support.fuzzing import Draw


contrib = getattr(optax, "contrib", None)
pytestmark = pytest.mark.skipif(
    not hasattr(contrib, "prodigy"), reason="prodigy came with optax 0.1.8"
)


def fuzzed(draw: Draw) -> Any:
    options = {"beta3": (None, 0.9), "weight_decay": (0.0, 0.1), "safeguard_warmup": (True, False)}
    known = inspect.signature(contrib.prodigy).parameters
    given = {name: draw.of(*values) for name, values in options.items() if name in known}
    return contrib.prodigy(draw.rate(), **given)


FUZZ = FuzzCase(fuzzed, "contrib.prodigy")
SINCE = ">=0.1.8"
PROGRAMS = {
    "rate 1": Program(lambda: contrib.prodigy(1.0), releases=SINCE, same="bits"),
    "decay": Program(lambda: contrib.prodigy(0.5, weight_decay=0.1), releases=SINCE, same="bits"),
    "schedule": Program(
        lambda: contrib.prodigy(optax.linear_schedule(0.1, 1.0, 5)), releases=SINCE, same="bits"
    ),
    "safeguard": Program(
        lambda: contrib.prodigy(safeguard_warmup=True), releases=">=0.2.3", same="bits"
    ),
    "bfloat16": Program(lambda: contrib.prodigy(1.0), jnp.bfloat16, SINCE, same="state"),
}


# With the default, d0 = 1e-6, even float32 params lose the first updates to rounding.
STEPS, BETA1, BETA2, EPS, D0 = 150, 0.9, 0.999, 1e-8, 1e-2
BETA3 = BETA2**0.5


def reference(start: Any, goal: Any, decay: float) -> tuple[Any, list[float]]:
    """Run Prodigy on |x - goal|^2 / 2 in float64, as in the paper. Return x, and d at each step."""
    x = in_float64(start)
    start = dict(x)
    m, v, s = ({name: np.zeros_like(leaf) for name, leaf in x.items()} for _ in range(3))
    d, r, distances = D0, 0.0, []
    for k in range(1, STEPS + 1):
        g = {name: leaf - goal[name] for name, leaf in x.items()}
        step = d * np.sqrt(1 - BETA2**k) / (1 - BETA1**k)
        r = BETA3 * r + d / D0 * step * sum((g[n] * (start[n] - x[n])).sum() for n in x)
        for n in x:
            m[n] = BETA1 * m[n] + (1 - BETA1) * d * g[n]
            v[n] = BETA2 * v[n] + (1 - BETA2) * (d * g[n]) ** 2
            s[n] = BETA3 * s[n] + step * d * g[n] / D0
        d = max(d, r / sum(np.abs(s[n]).sum() for n in s))
        for n, p in x.items():
            x[n] = p - step * (decay * p + m[n] / (np.sqrt(v[n]) + d * EPS))
        distances.append(d)
    return x, distances


def distances_of(tx: Any, params: Any, goal: Any) -> Any:
    return train(tx, params, goal, STEPS, lambda state: state.estim_lr)


@pytest.mark.parametrize("decay", one_of(2, [0.0, 0.01], 1))
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(jnp.float32, 1e-3), (jnp.float16, 0.05), (jnp.bfloat16, 0.15)]
)
def test_the_distance_follows_the_paper(dtype: Any, tolerance: float, decay: float) -> None:
    params, target = tree_of(dtype), tree_of(dtype, seed=1)
    goal = in_float64(target)
    tx = contrib.prodigy(1.0, weight_decay=decay, estim_lr0=D0)
    (got, state), distances = distances_of(tx, params, target)
    np.testing.assert_allclose(distances, reference(params, goal, decay)[1], rtol=tolerance)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in leaves((got, state)))


def test_float64_follows_the_paper() -> None:
    with x64():
        params, target = tree_of(jnp.float64), tree_of(jnp.float64, seed=1)
        goal = {name: np.asarray(leaf) for name, leaf in target.items()}
        tx = contrib.prodigy(1.0, estim_lr0=D0)
        (_, state), distances = distances_of(tx, params, target)
        assert state.estim_lr.dtype == jnp.float64
        np.testing.assert_allclose(distances, reference(params, goal, 0.0)[1], rtol=1e-9)


def test_float32_in_64_bit_mode_has_no_float64_inside() -> None:
    with x64():
        params = tree_of(jnp.float32)
        for rate in (1.0, lambda count: jnp.float32(1.0) / (count + 1).astype(jnp.float32)):
            tx = contrib.prodigy(rate)
            assert_keeps_the_contract(tx, params)
            assert not float64_in(lambda p, tx=tx: tx.update(p, tx.init(p), p), params)


def test_bfloat16_params_have_the_arrays_of_stock_and_float32_scalars() -> None:
    tx = contrib.prodigy()
    params = tree_of(jnp.bfloat16)
    assert_keeps_the_contract(tx, params)
    state = tx.init(params)
    averages = (state.exp_avg, state.exp_avg_sq, state.grad_sum)
    is_old = Version(optax.__version__) < Version("0.2.4")  # Up to 0.2.3 stock has float32.
    assert {*dtypes_of(averages)} == {jnp.dtype(jnp.float32 if is_old else jnp.bfloat16)}
    assert {*dtypes_of(state.params0)} == {jnp.dtype(jnp.bfloat16)}
    assert state.estim_lr.dtype == state.numerator_weighted.dtype == jnp.float32


@pytest.mark.parametrize("dtype", one_of(3, [jnp.float32, jnp.bfloat16, jnp.float16], 1))
def test_training_starts_after_a_zero_gradient(dtype: Any) -> None:
    tx = contrib.prodigy(estim_lr0=D0)
    params = tree_of(dtype)
    state = tx.init(params)
    for _ in range(2):
        updates, state = jax.jit(tx.update)(tree_map(jnp.zeros_like, params), state, params)
        np.testing.assert_array_equal(np.asarray(updates["w"], np.float32), 0.0)
        assert float(state.estim_lr) == np.float32(D0)
    updates, state = jax.jit(tx.update)(params, state, params)
    assert np.isfinite(np.asarray(updates["w"], np.float32)).all()
    assert np.asarray(updates["w"], np.float32).any()


@pytest.mark.parametrize("dtype", one_of(2, [jnp.float32, jnp.bfloat16], 1))
@pytest.mark.parametrize("gradient", [1e-25, 1e-30, 1e-35])
def test_training_starts_after_tiny_gradients(dtype: Any, gradient: float) -> None:
    """Their sum underflows: on stock, 0/0."""
    tx, params = contrib.prodigy(), {"w": jnp.ones(3, dtype)}
    state = tx.init(params)
    for size in (gradient, gradient, 1.0, 1.0):
        updates, state = tx.update({"w": jnp.full(3, size, dtype)}, state, params)
        assert bool(jnp.isfinite(updates["w"]).all())
    assert float(updates["w"][0]) < 0


def test_a_state_restored_from_stock_keeps_its_dtypes() -> None:
    """Stock has float32 trees for bfloat16 params up to 0.2.3, and bfloat16 scalars later."""
    tx = contrib.prodigy()
    params = tree_of(jnp.bfloat16)
    state = tx.init(params)
    restored = state._replace(
        grad_sum=tree_map(lambda leaf: leaf.astype(jnp.float32), state.grad_sum),
        estim_lr=state.estim_lr.astype(jnp.bfloat16),
    )
    _, new_state = jax.jit(tx.update)(params, restored, params)
    assert new_state.grad_sum["w"].dtype == jnp.float32
    assert new_state.estim_lr.dtype == jnp.bfloat16


@pytest.mark.skipif(
    Version(optax.__version__) > Version("0.2.3"), reason="stock refuses such a param from 0.2.4 on"
)
@pytest.mark.filterwarnings("ignore:In a future release of JAX, flatten-up-to")
def test_a_param_without_a_gradient_changes_nothing() -> None:
    tx, both = contrib.prodigy(), tree_of(jnp.float32)
    trainable, grads = {**both, "b": None}, {**both, "b": None}
    state = tx.init(trainable)
    expected, got = tx.update(grads, state, trainable), tx.update(grads, state, both)
    assert types(got) == types(expected)
    assert types(got[1]) == types(state)
    tree_map(np.testing.assert_array_equal, got, expected)


def walk_of(dtype: Any, params: Any, gradients: list[Any]) -> list[Any]:
    """Return the updates and states of a step for each gradient."""
    tx = contrib.prodigy(estim_lr0=D0)
    state, found, update = tx.init(params), [], jax.jit(tx.update)
    for tree in gradients:
        grads = tree_map(lambda g: jnp.asarray(g, dtype), tree)
        updates, state = update(grads, state, params)
        params = tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        found.append((updates, state))
    return found


@pytest.mark.parametrize("dtype", one_of(3, [jnp.bfloat16, jnp.float16, jnp.int8]))
def test_narrow_gradients_of_float32_params_give_the_results_of_float32_gradients(
    dtype: Any,
) -> None:
    random, params = np.random.default_rng(0), tree_of(jnp.float32)
    gradients = [tree_map(lambda p: random.integers(-5, 6, p.shape), params) for _ in range(3)]
    expected = walk_of(jnp.float32, params, gradients)
    for leaf, other in zip(leaves(walk_of(dtype, params, gradients)), leaves(expected)):
        assert leaf.dtype == other.dtype
        np.testing.assert_allclose(leaf, other, rtol=1e-6)


def test_updates_may_be_smaller_than_float16_numbers() -> None:
    """The first update is the first distance, here 1e-9, along the gradient."""
    tx, params = contrib.prodigy(1.0, estim_lr0=1e-9), {"w": jnp.ones((3,), jnp.float32)}
    grads = {"w": jnp.asarray([1.0, -2.0, 3.0], jnp.float16)}
    updates, _ = tx.update(grads, tx.init(params), params)
    exact = -1e-9 * np.asarray([1.0, -1.0, 1.0]) * np.sqrt(1 - BETA2) / (1 - BETA1)
    exact *= (1 - BETA1) / np.sqrt(1 - BETA2)
    np.testing.assert_allclose(updates["w"], exact, rtol=1e-3)
