from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_dtypefix._contract.bits import bits_from, starts_of
from optax_dtypefix._contract.rounding import round_stochastically

HALVES = pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bf16", "f16"])
KEY = jax.random.PRNGKey(0)


@HALVES
@pytest.mark.parametrize("size", [1.0, 3e-3, 1e-5, 3e-7, 60000.0])
def test_a_number_is_rounded_to_its_neighbours_in_proportion(dtype: Any, size: float) -> None:
    exact = np.float32(size * (1 + 1e-3))
    many = jnp.full((100_000,), exact)
    for sign in (1, -1):
        bits = jax.random.bits(KEY, many.shape, jnp.uint16)
        found = np.asarray(round_stochastically(sign * many, dtype, bits), float)
        values = np.unique(found)
        assert len(values) <= 2
        gap = values.max() - values.min()
        assert values.min() <= sign * exact <= values.max() or len(values) == 1
        spread = gap / 2 / np.sqrt(many.size)
        np.testing.assert_allclose(found.mean(), sign * exact, rtol=1e-6, atol=5 * spread + 1e-12)


@HALVES
def test_exact_and_infinite_numbers_stay(dtype: Any) -> None:
    info = jnp.finfo(dtype)
    numbers = [0.0, -0.0, 1.5, -3.0, float(info.max), float(-info.max), np.inf, -np.inf, np.nan]
    exact = jnp.asarray(numbers, dtype)
    for seed in range(10):
        bits = jax.random.bits(jax.random.PRNGKey(seed), exact.shape, jnp.uint16)
        found = round_stochastically(exact.astype(jnp.float32), dtype, bits)
        np.testing.assert_array_equal(np.asarray(found, float), np.asarray(exact, float))
        above = jnp.float32(float(info.max)) * (1 + 2.0**-12)
        assert jnp.isfinite(round_stochastically(above, dtype, bits[0]))


def test_rounding_to_float16_is_right_on_average_and_finite() -> None:
    every = jnp.arange(2**16, dtype=jnp.uint16)
    for number in (1e-12, -1e-12, 5e-11, -5e-11, 1e-9, 1.3e-7, -3e-5, 5.9e-5, 0.3):
        many = jnp.full(every.shape, number, jnp.float32)
        found = np.asarray(round_stochastically(many, jnp.float16, every), float).mean()
        np.testing.assert_allclose(found, np.float32(number), rtol=1e-4, atol=2.0**-41)
    for number in (65510.0, 65536.0, 7e4, 1e6, 3.3e38):
        both = jnp.asarray([number, -number], jnp.float32)
        found = round_stochastically(both, jnp.float16, jnp.full(2, 2**16 - 1, jnp.uint16))
        np.testing.assert_array_equal(np.asarray(found, float), [65504.0, -65504.0])
    with jax.numpy_dtype_promotion("strict"):
        round_stochastically(jnp.ones(2), jnp.float16, every[:2])


def test_each_array_has_its_own_bits() -> None:
    shapes = [(5000,), (2,), (3, 5)]
    starts = starts_of([[jnp.ones(shape)] for shape in shapes])
    both = [bits_from(start, shape) for start, shape in zip(starts, shapes)]
    assert [bits.shape for bits in both] == shapes
    assert len(np.unique(np.concatenate([np.ravel(bits)[:15] for bits in both[1:]]))) > 10
