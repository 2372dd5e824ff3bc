"""What is rounded to nearest is not written before, so that a step takes no more memory."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packaging.version import Version

from optax_dtypefix._contract.rounding import round_to_nearest

SIZE = 1 << 16


def temporaries(round_: Any) -> int:
    """Count the bytes that XLA needs in a step of adam, beside its arguments and results."""

    def step(param: Any, mu: Any, nu: Any, grad: Any) -> Any:
        mu, nu, grad = (leaf.astype(jnp.float32) for leaf in (mu, nu, grad))
        mu, nu = 0.9 * mu + 0.1 * grad, 0.999 * nu + 0.001 * grad**2
        update = round_(1.1 * mu / (jnp.sqrt(1.2 * nu) + 1e-8), jnp.float16)
        return param - 0.01 * update, mu.astype(jnp.float16), nu.astype(jnp.float16)

    shapes = [jax.ShapeDtypeStruct((SIZE,), jnp.float16)] * 4
    compiled = jax.jit(step).lower(*shapes).compile()
    size: int = compiled.memory_analysis().temp_size_in_bytes
    return size


def used_twice(leaf: Any, dtype: Any) -> Any:
    """Round as before: XLA writes the leaf."""
    return jnp.where(jnp.isfinite(leaf), jnp.clip(leaf, -65504, 65504), leaf).astype(dtype)


@pytest.mark.skipif(Version(version("jax")) < Version("0.10"), reason="measured on newer versions")
def test_rounding_needs_no_array_of_its_own() -> None:
    assert temporaries(used_twice) >= 4 * SIZE
    assert temporaries(round_to_nearest) < SIZE


def test_what_is_not_finite_stays_so_and_the_rest_is_numpys() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    ends = np.asarray([np.nan, np.inf, -np.inf, -0.0, 0.0, 65519, -1e38], np.float32)
    leaf = np.concatenate([bits.view(np.float32), ends])
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.clip(leaf, -65504, 65504).astype(np.float16)
        expected = np.where(np.isfinite(leaf), finite, leaf.astype(np.float16))
    rounded = np.asarray(jax.jit(round_to_nearest, static_argnums=1)(leaf, jnp.float16))
    assert np.array_equal(rounded, expected, equal_nan=True)
