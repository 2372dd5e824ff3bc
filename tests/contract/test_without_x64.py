"""``without_x64``, for stock code that makes float64 of Python numbers."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_dtypefix._contract.x64 import is_x64, without_x64, x64
from support.contract import float64_in
from support.thorough import one_of
from support.trees import leaves, tree_map

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "power": lambda x, c: x * (1 - 0.9 ** (c + 1)) ** 0.5,
    "where": lambda x, c: jnp.where(c == 0, 0.0, 0.9) * x,
    "cond": lambda x, c: jax.lax.cond(c == 0, lambda: 0.0, lambda: 0.9) * x,
    "finfo": lambda x, _: jnp.where(x <= jnp.finfo(float).eps, 0.0, x),
    "numpy": lambda x, _: x * np.float64(0.1) + np.ones(3),
    "constant": lambda x, _: x * jnp.asarray([0.1, 0.2, 0.3]) + jnp.asarray(1e-3),
    "nested": lambda x, c: jax.jit(lambda y: jnp.clip(y, 0.1, 0.9) * np.float64(0.2))(x) + c,
    "scan": lambda x, c: jax.lax.scan(
        lambda s, _: (s * 0.9 + jnp.where(c == 0, 0.0, 1.0), None), x, None, length=3
    )[0],
    "tree": lambda x, c: {"a": (x, None), "b": c / 3, "c": jnp.asarray(0.25)},
}


@pytest.mark.rule("C3")
@pytest.mark.parametrize("function", one_of(3, FUNCTIONS.values()), ids=FUNCTIONS)
def test_no_float64_is_computed(function: Any) -> None:
    expected = function(jnp.full(3, 2.0), jnp.asarray(3))
    with x64():
        x, c = jnp.full(3, 2.0, jnp.float32), jnp.asarray(3, jnp.int32)

        def run(x: Any, c: Any) -> Any:
            return without_x64(function, x, c)

        def batched(x: Any, c: Any) -> Any:
            out = jax.vmap(run)(jnp.stack([x, x]), jnp.stack([c, c]))
            return tree_map(lambda leaf: leaf[0], out)

        def among_64_bits(x: Any, c: Any) -> Any:
            wide = jnp.clip(c * 1.5, 0.1, 0.9) + jnp.where(c == 0, 0.0, 0.9)
            found = run(x, c)
            assert wide.dtype == jnp.float64
            return found

        for way in (run, jax.jit(run), batched, jax.jit(batched), jax.jit(among_64_bits)):
            found = way(x, c)
            assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
            for leaf, reference in zip(leaves(found), leaves(expected)):
                assert leaf.dtype == reference.dtype
                np.testing.assert_allclose(leaf, reference, rtol=1e-6)
        assert not float64_in(run, x, c)
        gradient = jax.jit(jax.grad(lambda x: leaves(run(x, c))[0].sum()))(x)
        assert gradient.dtype == jnp.float32


@pytest.mark.parametrize("dtype", one_of(3, [jnp.float64, jnp.int64, jnp.complex128]))
def test_64_bit_arguments_are_left_alone(dtype: Any) -> None:
    with x64():
        assert without_x64(lambda x: (x, is_x64()), jnp.ones(3, dtype))[1]
        assert without_x64(lambda x: x * 2, jnp.ones(3, dtype)).dtype == dtype


def test_32_bit_mode_is_left_alone() -> None:
    def function(x: Any) -> Any:
        return jnp.where(x > 0, 0.5, x)

    plain = jax.make_jaxpr(function)(jnp.ones(3))
    assert str(jax.make_jaxpr(lambda x: without_x64(function, x))(jnp.ones(3))) == str(plain)


def test_the_mode_is_restored() -> None:
    with x64():
        assert is_x64()
        with pytest.raises(ZeroDivisionError):
            without_x64(lambda x: x / (1 // 0), jnp.ones(3, jnp.float32))
        assert is_x64()
    assert not is_x64()
