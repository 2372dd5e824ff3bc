"""The user's code runs as often as on stock, and its exceptions come out as they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from support.processes import stock_and_patched
from support.user_calls import MISTAKE

Found = dict[str, Any]


@pytest.fixture(scope="module")
def cells() -> tuple[Found, Found]:
    stock, patched = stock_and_patched("support.user_calls")
    right = [name for name, found in stock.items() if runs_in_stock(found)]
    assert len(right) > 0.9 * len(stock)
    return tuple({name: found[name] for name in right} for found in (stock, patched))  # type: ignore[return-value]


def runs_in_stock(found: Any) -> bool:
    """Check that stock itself does not raise: what is patched then has to call more."""
    return found["error"] is None or found["error"]["users"]


def test_the_users_code_runs_as_often_as_on_stock(cells: tuple[Found, Found]) -> None:
    stock, patched = cells
    assert any(found["calls"][-1] for found in stock.values())
    assert {n: f["calls"] for n, f in patched.items()} == {n: f["calls"] for n, f in stock.items()}


def test_the_users_exception_comes_out_unchained(cells: tuple[Found, Found]) -> None:
    stock, patched = cells
    assert any(found["error"] for found in stock.values())
    assert {n: f["error"] for n, f in patched.items()} == {n: f["error"] for n, f in stock.items()}


# optax 0.1.2 calls jax.tree_leaves in inject_hyperparams.
@pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated:FutureWarning")
@pytest.mark.parametrize("mistake", [TypeError, ValueError])
def test_inject_hyperparams_runs_a_failing_update_once(mistake: type[Exception]) -> None:
    calls = []

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del grads, state, params
        calls.append(1)
        raise mistake(MISTAKE)

    def factory(rate: Any) -> Any:
        failing = optax.GradientTransformation(lambda _: (), update)
        return optax.chain(failing, optax.scale(rate))

    tx, params = optax.inject_hyperparams(factory)(0.1), jnp.ones(3, jnp.bfloat16)
    state = tx.init(params)
    with pytest.raises(mistake, match=MISTAKE) as raised:
        jax.eval_shape(tx.update, params, state, params)
    assert len(calls) == 1
    assert raised.value.__context__ is None
