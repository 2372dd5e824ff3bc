"""Updates are bounded once, where a chain ends; inside it links see what stock shows them."""

from __future__ import annotations

import contextlib
import threading
import types
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

import optax_dtypefix
from support.chains import RATE, SIZE, STEPS, gradient, wide
from support.processes import stock_and_patched
from support.thorough import one_of, thorough_but

# optax 0.1.2 calls functions of jax by their deprecated names.
pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_:FutureWarning")


def reference(case: str) -> dict[str, Any]:
    """Compute the last updates of a case in float64, on gradients as the user rounds them."""
    moment, way, *_, regime = case.split(", ")
    dtypes = {"bfloat16": ("bfloat16", "bfloat16"), "mixed": ("bfloat16", "float32")}
    grads = [
        {n: np.asarray(gradient(t, d, n), np.float64) for n, d in zip("ab", dtypes[regime])}
        for t in range(STEPS)
    ]
    updates = {}
    for name in "ab":
        mu = nu = np.zeros(4)
        for tree in grads:
            g = tree[name] * (1 if way in ("alone", "normalized") else RATE)
            if way == "normalized":
                g = g / np.sqrt(sum(np.sum(leaf**2) for leaf in tree.values()))
            mu = 0.9 * mu + (1 if moment == "trace" else 0.1) * g
            nu = 0.999 * nu + 0.001 * g**2
        debiased = mu / (1 - 0.9**STEPS)
        adam = debiased / (np.sqrt(nu / (1 - 0.999**STEPS)) + 1e-8)
        updates[name] = -0.1 * {"adam": adam, "ema": debiased, "trace": mu}[moment]
    return updates


SOME = ("adam, scaled", "ema, nested", "trace, masked", "asked for")
"""The README's command runs these chains only."""


@pytest.fixture(scope="module", params=thorough_but([SOME], [SOME, ()]), ids=["some", "all"])
def found(request: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    stock, patched = stock_and_patched("support.chains", *request.param)
    assert stock.keys() == patched.keys()
    return stock, patched


def error(case: str, of: dict[str, Any]) -> float:
    right = reference(case)
    return max(
        float(np.max(np.abs(np.subtract(of[case]["updates"][n], right[n])) / np.abs(right[n])))
        for n in "ab"
    )


def promoting(cases: Any) -> list[str]:
    return [
        case
        for case in cases
        if not case.startswith("asked") and not case.endswith("float32") and "alone" not in case
    ]


@pytest.mark.rule("C4")
def test_moments_behind_a_link_that_promotes_do_not_stall(found: Any) -> None:
    _, patched = found
    cases = promoting(patched)
    assert len(cases) >= (6 if len(patched) <= 3 * len(SOME) else 20)
    assert not {case: error(case, patched) for case in cases if error(case, patched) > 0.03}


@pytest.mark.rule("C1", "C2")
def test_states_keep_their_dtypes_and_updates_are_bounded(found: Any) -> None:
    stock, patched = found
    assert not all(stock[case]["stable"] for case in promoting(stock))
    for case, of in patched.items():
        assert of["stable"], case
        first = "bfloat16" if not case.endswith("float32") else "float32"
        second = "bfloat16" if case.endswith("bfloat16") else "float32"
        if case.startswith("asked for, scaled"):
            first = second = "float32"
        elif case.startswith("asked for"):  # In the group of the first leaf alone.
            first = "float32"
        assert of["dtypes"] == {"a": first, "b": second}, case


@pytest.mark.rule("C7")
def test_the_users_links_see_the_users_dtypes(found: Any) -> None:
    """Never a float32 copy; a link that promotes does not show here either."""
    _, patched = found
    regimes = {
        "bfloat16": ["bfloat16"] * 4,
        "mixed": ["bfloat16", "float32"] * 2,
        "float32": ["float32"] * 4,
    }
    for case, of in patched.items():
        assert of["saw"] in ([], regimes[case.split(", ")[-1]]), case


@pytest.mark.rule("C5")
def test_float32_chains_have_the_results_of_stock(found: Any) -> None:
    stock, patched = found
    cases = [case for case in stock if case.endswith("float32")]
    assert {case: patched[case] for case in cases} == {case: stock[case] for case in cases}


PARAMS = {"a": jnp.ones(4, jnp.bfloat16)}


def test_a_float16_gradient_that_a_link_scales_down_does_not_vanish() -> None:
    """1e-3 / 128 squared is 0 in float16: adam up to 0.2.3 was 97 % off."""
    params = {"a": jnp.ones(4, jnp.float16)}
    grads = {"a": jnp.full(4, 1e-3, jnp.float16)}
    tx = optax.chain(optax.scale(wide()), optax.scale_by_adam(), optax.scale(-1.0))
    state = tx.init(params)
    for _ in range(5):
        updates, state = tx.update(grads, state, params)
    scaled = np.float64(np.float16(1e-3)) / 128
    assert updates["a"].dtype == jnp.float16
    if state[1].nu["a"].dtype == jnp.float32:  # From 0.2.4 on, stock's is float16.
        np.testing.assert_allclose(updates["a"], -scaled / (scaled + 1e-8), rtol=1e-3)


def test_an_error_in_a_link_leaves_no_chain_open() -> None:
    def update(*_: Any) -> Any:
        raise ValueError("the user's")

    tx = optax.chain(optax.scale(wide()), optax.GradientTransformation(lambda _: (), update))
    with pytest.raises(ValueError, match="the user's"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    alone = optax.scale(wide())
    assert alone.update(PARAMS, alone.init(PARAMS))[0]["a"].dtype == jnp.float32  # No params.
    updates, _ = alone.update(PARAMS, alone.init(PARAMS), PARAMS)
    assert updates["a"].dtype == jnp.bfloat16


def test_a_link_may_run_another_chain_of_the_user() -> None:
    other = optax.chain(optax.scale(wide()), optax.scale(-1.0))

    def update(updates: Any, state: Any, _: Any) -> Any:
        inside, _ = other.update(PARAMS, other.init(PARAMS), PARAMS)
        assert inside["a"].dtype == jnp.bfloat16  # The outermost update that the user calls.
        return updates, state

    link = optax.GradientTransformation(lambda _: (), update)
    tx = optax.chain(optax.scale(wide()), link, optax.ema(0.9))
    updates, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    assert {updates["a"].dtype, state[-1].ema["a"].dtype} == {jnp.dtype(jnp.bfloat16)}


def test_one_chain_runs_in_several_threads() -> None:
    tx, results = optax.chain(optax.scale(wide()), optax.ema(0.9)), list[Any]()

    def train() -> None:
        state = tx.init(PARAMS)
        for _ in range(5):
            updates, state = tx.update(PARAMS, state, PARAMS)
        results.append(updates)

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all((updates["a"] == results[0]["a"]).all() for updates in results)


def test_a_jitted_link_bounds_its_own_updates() -> None:
    """What JAX traced once must not depend on where it is called."""
    scale = optax.scale(wide())
    step = jax.jit(scale.update)
    link = optax.GradientTransformation(scale.init, step)
    tx = optax.chain(link, optax.ema(0.9))
    for _ in range(2):
        updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
        alone, _ = step(PARAMS, scale.init(PARAMS), PARAMS)
        assert {updates["a"].dtype, alone["a"].dtype} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.skipif(not hasattr(optax, "scale_by_polyak"), reason="it came with optax 0.2.2")
def test_moments_behind_a_link_that_needs_the_loss_follow_float64() -> None:
    """Stock promotes by the loss up to 0.2.4."""
    tx = optax.chain(optax.scale_by_polyak(), optax.scale_by_adam())
    state = first = tx.init(PARAMS)
    update, value = jax.jit(tx.update), jnp.float32(2)
    mu = nu = np.zeros(SIZE)
    for step in range(STEPS):
        grads = {"a": gradient(step, "bfloat16", "a")}
        updates, state = update(grads, state, PARAMS, value=value)
        exact = np.asarray(grads["a"], np.float64)
        exact = exact * min(2 / np.sum(exact**2), 1.0)
        mu, nu = 0.9 * mu + 0.1 * exact, 0.999 * nu + 0.001 * exact**2
    right = mu / (1 - 0.9**STEPS) / (np.sqrt(nu / (1 - 0.999**STEPS)) + 1e-8)
    dtypes = [[leaf.dtype for leaf in jax.tree_util.tree_leaves(s)] for s in (first, state)]
    assert dtypes[0] == dtypes[1]
    np.testing.assert_allclose(np.asarray(updates["a"], np.float64), right, rtol=0.03)


def test_a_link_that_the_users_code_compiles_keeps_its_own_bounds() -> None:
    """JAX keeps the trace for calls outside of the chain."""
    params = {"a": jnp.ones(3, jnp.bfloat16)}
    link = optax.scale(jnp.float32(0.1))
    compiled = jax.jit(link.update)
    users = optax.GradientTransformation(link.init, lambda u, s, p=None: compiled(u, s, p))
    tx = optax.chain(users, optax.masked(link, {"a": False}))
    state = tx.init(params)
    for _ in range(3):
        updates, _ = tx.update(params, state, params)
        assert updates["a"].dtype == jnp.bfloat16
    assert compiled(params, link.init(params), params)[0]["a"].dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", one_of(2, [jnp.float32, jnp.bfloat16], 1))
def test_a_link_may_be_an_object_that_is_no_transformation(dtype: Any) -> None:
    inside = optax.adam(0.1)
    link = types.SimpleNamespace(init=inside.init, update=inside.update)
    params = {"a": jnp.ones(3, dtype)}
    builds = [lambda tx: optax.masked(tx, {"a": True})]
    if Version(optax.__version__) >= Version("0.1.5"):  # Before, stock's chain takes tuples.
        builds.append(optax.chain)
    for build in builds:
        tx, same = build(link), build(inside)
        updates, _ = tx.update(params, tx.init(params), params)
        right, _ = same.update(params, same.init(params), params)
        np.testing.assert_array_equal(updates["a"], right["a"])
        assert updates["a"].dtype == dtype


def test_chains_around_a_link_ask_it_once() -> None:
    """As often as stock does."""
    params = {"a": jnp.ones(3, jnp.bfloat16)}

    def count_inits(depth: int) -> int:
        calls: list[Any] = []
        inside = optax.trace(0.9)
        users = optax.GradientTransformation(
            lambda params: calls.append(params) or inside.init(params),  # type: ignore[func-returns-value]
            lambda updates, state, params=None: inside.update(updates, state, params),
        )
        tx = users
        for _ in range(depth):
            tx = optax.chain(optax.scale(jnp.float32(0.3)), tx, optax.trace(0.5))
        tx.init(params)
        return len(calls)

    assert count_inits(6) == 1


def _updates(build: Callable[[], Any], dtype: Any, *off: str) -> Any:
    params = {"a": jnp.ones(8, dtype)}
    with optax_dtypefix.disabled(*off) if off else contextlib.nullcontext():
        tx = build()
        state, found = tx.init(params), []
        for step in range(9):
            grads = {"a": jnp.sin(jnp.arange(8) + step).astype(dtype)}
            updates, state = tx.update(grads, state, params)
            found.append(np.asarray(updates["a"], np.float32))
    return np.stack(found)


@pytest.mark.parametrize(
    "builder", one_of(2, [n for n in ("adam", "novograd") if hasattr(optax, n)])
)
def test_a_patch_that_is_off_is_off_in_a_chain_too(builder: str) -> None:
    """What the chain lifts by other patches does not count, nor does the other half precision."""

    def link() -> Any:
        return getattr(optax, builder)(0.1)

    def chain() -> Any:
        return optax.chain(optax.clip_by_global_norm(1e3), link())

    ids = {"float16_eps": jnp.float16, "bfloat16_moments": jnp.bfloat16}
    for (patch_id, dtype), other in zip(ids.items(), reversed(ids.values())):
        off = _updates(chain, dtype, patch_id)
        # A chain rounds once after what follows the link, so that the last bit may differ.
        np.testing.assert_allclose(off, _updates(link, dtype, patch_id), rtol=0.01)
        assert (off != _updates(chain, dtype)).any()
        for build in (chain, link):
            np.testing.assert_array_equal(_updates(build, other, patch_id), _updates(build, other))
