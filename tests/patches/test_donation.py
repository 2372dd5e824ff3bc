"""A step may donate params and state: a new state shares no array with the params."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support.donation import builders
from support.processes import stock_and_patched

BUILDERS = builders()
pytestmark = pytest.mark.skipif(not BUILDERS, reason="the first of them came with optax 0.1.8")


@pytest.fixture(scope="module")
def found() -> Any:
    return stock_and_patched("support.donation")


@pytest.mark.rule("C1")
def test_params_and_a_new_state_may_be_donated(found: Any) -> None:
    stock, patched = ({name: error for name, (error, _) in half.items()} for half in found)
    assert "donate the same buffer twice" in str(next(filter(None, stock.values()), None))
    assert patched == dict.fromkeys(stock)


def test_a_traced_start_has_the_copies_of_stock(found: Any) -> None:
    stock, patched = ({name: copies for name, (_, copies) in half.items()} for half in found)
    assert patched == stock


@pytest.mark.skipif("prodigy" not in BUILDERS, reason="prodigy came with optax 0.1.8")
def test_the_copy_of_the_params_has_their_bits() -> None:
    params = {"w": jnp.asarray([jnp.nan, -0.0, 1e-40, 3.0])}
    copied = optax.contrib.prodigy().init(params).params0["w"]
    np.testing.assert_array_equal(np.asarray(copied).view("u4"), np.asarray(params["w"]).view("u4"))
