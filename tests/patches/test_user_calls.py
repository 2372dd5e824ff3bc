"""The user's code runs as often as on stock, and its exceptions come out as they are."""

from __future__ import annotations

import collections
import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import optax
import pytest

from support.processes import stock_and_patched
from support.thorough import thorough_but

if TYPE_CHECKING:
    from collections.abc import Iterator

Found = dict[str, Any]
WIDE = jnp.ones((3, 2), jnp.float32)
NARROW = jnp.ones((3, 2), jnp.bfloat16)


SOME = (
    *("chain around moment", "MultiSteps around counter", "masked around moment"),
    *("apply_if_finite around counter", "schedule_free around moment", "mechanize around moment"),
    *("adam with it", "adamw with it", "inject_hyperparams with it", "MultiSteps with it"),
)
"""The README's command looks at these only."""


@pytest.fixture(scope="module", params=thorough_but([SOME], [SOME, ()]), ids=["some", "all"])
def cells(request: Any) -> tuple[Found, Found]:
    stock, patched = stock_and_patched("support.user_calls", *request.param)
    right = [name for name, found in stock.items() if runs_in_stock(found)]
    assert len(right) > 0.9 * len(stock)
    return tuple({name: found[name] for name in right} for found in (stock, patched))  # type: ignore[return-value]


def runs_in_stock(found: Any) -> bool:
    """Check that stock itself does not raise: what is patched then has to call more."""
    return found["error"] is None or found["error"]["users"]


@pytest.mark.rule("C0")
def test_the_users_code_runs_as_often_as_on_stock(cells: tuple[Found, Found]) -> None:
    stock, patched = cells
    assert any(found["calls"][-1] for found in stock.values())
    assert {n: f["calls"] for n, f in patched.items()} == {n: f["calls"] for n, f in stock.items()}


@pytest.mark.rule("C7")
def test_the_users_exception_comes_out_unchained(cells: tuple[Found, Found]) -> None:
    stock, patched = cells
    assert any(found["error"] for found in stock.values())
    assert {n: f["error"] for n, f in patched.items()} == {n: f["error"] for n, f in stock.items()}


def updates_of_stock(step: Callable[[], Any]) -> int:
    """Count how often a step runs the update of a transformation of optax that has a state."""
    calls: collections.Counter[str] = collections.Counter()

    def profile(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "update_fn" and "/optax/" in code.co_filename:
            calls[code.co_filename] += "state" in code.co_varnames

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return sum(calls.values())


def with_wide_gradients() -> Iterator[tuple[str, Callable[[], Any], int]]:
    yield "adam", optax.scale_by_adam, 1
    yield "rms", optax.scale_by_rms, 1
    yield "adam with a narrow moment", lambda: optax.scale_by_adam(mu_dtype=jnp.bfloat16), 1
    if hasattr(getattr(optax, "contrib", None), "prodigy"):
        yield "prodigy", optax.contrib.prodigy, 1


CASES = {name: (build, times) for name, build, times in with_wide_gradients()}


@pytest.mark.parametrize("name", thorough_but(("adam", "prodigy"), CASES))
def test_an_eager_step_with_wide_gradients_does_not_trace_stock(name: str) -> None:
    """It is traced in the first step, and once more if the dtypes of the state change there."""
    build, times = CASES[name]
    if "narrow" in name and jax.__version_info__ <= (0, 4, 13):
        pytest.skip("keeps no trace: jax.clear_caches() would crash")
    for _ in range(2):  # The second transformation uses what was traced for the first.
        tx = build()
        state = tx.init(NARROW)
        for _ in range(2):
            _, state = tx.update(WIDE, state, NARROW)
    assert updates_of_stock(lambda: tx.update(WIDE, state, NARROW)) == times
    after_clearing = []
    jax.clear_caches()  # As after a patch is reverted.
    for _ in range(2):
        after_clearing.append(updates_of_stock(lambda: tx.update(WIDE, state, NARROW)))
    assert after_clearing[-1] == times


def test_what_was_traced_holds_no_arrays() -> None:
    rate = jnp.asarray(0.5, jnp.float32)
    params, grads = NARROW + 1, WIDE + 1
    tx = optax.scale_by_rms(decay=rate)
    state = tx.init(params)
    for _ in range(2):
        _, state = tx.update(grads, state, params)
    arrays = [rate, params, grads, *jax.tree_util.tree_leaves(state)]
    alive = [weakref.ref(array) for array in arrays]
    gc.disable()
    try:
        del rate, params, grads, state, tx, arrays, _
        assert [ref() for ref in alive if ref() is not None] == []
    finally:
        gc.enable()
