from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import assert_keeps_the_contract, float64_in, tree_of

from optax_dtypefix._dtypes import x64

RATES = {
    "array": lambda: jnp.asarray(0.1, jnp.float32),
    "numpy array": lambda: np.asarray(0.1, np.float32),
    "numpy scalar": lambda: np.float64(0.1),
    "bfloat16": lambda: jnp.asarray(0.1, jnp.bfloat16),
}


@pytest.mark.parametrize("rate", RATES.values(), ids=RATES)
@pytest.mark.parametrize("dtypes", [("bfloat16",), ("float16",), ("bfloat16", "float32")], ids=str)
def test_updates_have_the_dtypes_of_the_gradients(rate: Any, dtypes: Any) -> None:
    assert_keeps_the_contract(optax.sgd(rate(), momentum=0.9), tree_of(*dtypes))
    assert_keeps_the_contract(optax.adamw(rate(), weight_decay=rate()), tree_of(*dtypes))


@pytest.mark.parametrize("rate", RATES.values(), ids=RATES)
def test_nothing_is_computed_in_float64(rate: Any) -> None:
    with x64():
        params = tree_of(jnp.float32)
        tx = optax.chain(optax.add_decayed_weights(rate()), optax.sgd(rate()))
        assert not float64_in(tx.update, params, tx.init(params), params)
        assert_keeps_the_contract(tx, params)


def test_float64_params_keep_a_float64_rate() -> None:
    with x64():
        params = tree_of(jnp.float64)
        rate = np.float64(0.1) + 1e-12
        updates, _ = optax.sgd(rate).update(params, optax.sgd(rate).init(params), params)
        np.testing.assert_array_equal(updates["w"], -rate * np.asarray(params["w"]))


def test_the_rate_is_not_rounded_before_it_is_used() -> None:
    """0.1 is 0.10009765625 in bfloat16, which is 0.1 % off."""
    params = {"w": jnp.full(3, 1.0, jnp.float32), "b": jnp.full(3, 3.0, jnp.bfloat16)}
    tx = optax.sgd(jnp.asarray(0.1, jnp.float32))
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"], np.float32(-0.1) * np.float32(1))
    np.testing.assert_array_equal(updates["b"], jnp.asarray(-np.float32(0.1) * 3, jnp.bfloat16))


def test_a_float32_rate_of_float32_params_keeps_its_bits() -> None:
    params = tree_of(jnp.float32)
    rate = np.float32(0.1)
    tx = optax.sgd(rate)
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"], -rate * np.asarray(params["w"]))
