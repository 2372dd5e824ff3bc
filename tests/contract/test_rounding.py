from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_dtypefix._contract.bits import bits_of_elements, bits_of_step
from optax_dtypefix._contract.rounding import round_stochastically
from support.thorough import one_of

pytestmark = pytest.mark.rule("C4")

HALVES = pytest.mark.parametrize(
    "dtype", one_of(2, [jnp.bfloat16, jnp.float16]), ids=["bf16", "f16"]
)
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
        if dtype == jnp.float16:
            assert jnp.isfinite(round_stochastically(jnp.float32(7e4), dtype, bits[0]))


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


def test_a_nan_of_a_gpu_stays() -> None:
    """Its bits are all ones but the sign: one more would be -0."""
    every = np.asarray([0x7FFFFFFF, 0x7FC00000, 0xFFC00000, 0x7F800001], np.uint32)
    numbers = jax.lax.bitcast_convert_type(jnp.asarray(every), jnp.float32)
    for dtype in (jnp.bfloat16, jnp.float16):
        for bits in (0, 2**15, 2**16 - 1):
            found = round_stochastically(numbers, dtype, jnp.int32(bits))
            assert np.isnan(np.asarray(found, float)[:3]).all()


def chi_squared(*columns: Any) -> float:
    """Return how far cells of an 8 x 8 table (or 64 cells) are from even, in spreads."""
    cells = [
        np.ravel(column).astype(int) >> (13 if len(columns) == 2 else 10) for column in columns
    ]
    index = cells[0] * 8 + cells[1] if len(columns) == 2 else cells[0]
    counts = np.bincount(index, minlength=64)
    expected = counts.sum() / 64
    return float((((counts - expected) ** 2 / expected).sum() - 63) / np.sqrt(2 * 63))


@pytest.mark.parametrize("shape", [(4000,), (64, 64), (144, 89), (4001, 8), (12, 30, 40)], ids=str)
def test_neighbours_have_bits_that_are_independent(shape: tuple[int, ...]) -> None:
    bits = np.asarray(bits_of_elements(jnp.uint32(0), jnp.float32(0), jnp.float32(0), shape))
    assert bits.min() >= 0
    assert bits.max() < 2**16
    assert chi_squared(bits) < 6
    for axis, size in enumerate(shape):
        for distance in range(1, min(size, 9)):
            first, second = (
                np.take(bits, range(*r), axis) for r in ((size - distance,), (distance, size))
            )
            assert chi_squared(first, second) < 6, (axis, distance)


def test_each_element_goes_round_over_the_steps() -> None:
    """41 steps visit each of 41 parts once: a number alone is rounded as right as many."""
    steps = np.asarray(
        [
            bits_of_elements(bits_of_step(n), jnp.float32(0), jnp.float32(0), (5, 7))
            for n in range(41 * 20)
        ]
    )
    for block in steps.reshape(20, 41, -1):
        parts = np.sort(block, 0)
        assert np.diff(parts, axis=0).max() <= 2 * 2**16 / 41
    assert np.abs(steps.mean(0) / 2**16 - 0.5).max() < 0.02
