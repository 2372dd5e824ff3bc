"""JAX's trace caches compare by equality: a wrapper that equals its stock function is not called.

Two tests also run a plain ``wrapt.FunctionWrapper``, which JAX takes for the stock function. Once
JAX no longer does so, these tests fail, and ``PatchedFunction`` can become simpler.
"""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import wrapt

from optax_dtypefix._engine.wrapper import PatchedFunction
from support.fakepackage import negate

Wrap = Callable[[Callable[..., Any]], Any]


def plain(function: Callable[..., Any]) -> Any:
    return wrapt.FunctionWrapper(
        function, lambda wrapped, _, args, kwargs: -wrapped(*args, **kwargs)
    )


def ours(function: Callable[..., Any]) -> Any:
    wrapper = PatchedFunction(function)
    wrapper._self_set_layers([negate])
    return wrapper


class Model:
    def step(self, x: Any) -> Any:
        return x * 2


@pytest.mark.parametrize(("wrap", "value"), [(plain, 2.0), (ours, -2.0)])
def test_jit_of_stock_and_then_of_the_wrapper(wrap: Wrap, value: float) -> None:
    def stock(x: Any) -> Any:
        return x * 2

    assert jax.jit(stock)(1.0) == 2.0
    assert jax.jit(wrap(stock))(1.0) == value
    assert jax.jit(stock)(1.0) == 2.0


@pytest.mark.parametrize(("wrap", "right"), [(plain, False), (ours, True)])
def test_cond_between_the_wrapper_and_stock(wrap: Wrap, right: bool) -> None:
    def stock(x: Any) -> Any:
        return x * 2

    def pick(p: Any) -> float:
        return float(jax.lax.cond(p, wrap(stock), stock, 1.0))

    pick(jnp.asarray(False))
    assert ((pick(jnp.asarray(True)), pick(jnp.asarray(False))) == (-2.0, 2.0)) == right


@pytest.mark.parametrize("wrap", [ours])
def test_bound_methods(wrap: Wrap) -> None:
    model = Model()
    assert jax.jit(model.step)(1.0) == 2.0
    patched = type("Patched", (Model,), {"step": wrap(Model.step)})()
    assert jax.jit(patched.step)(1.0) == -2.0
    assert jax.lax.cond(jnp.asarray(True), patched.step, model.step, 1.0) == -2.0


def test_jax_transformations_accept_a_wrapper() -> None:
    def stock(x: Any) -> Any:
        return x * x

    wrapper = ours(stock)
    assert jax.grad(wrapper)(3.0) == -6.0
    np.testing.assert_array_equal(jax.vmap(wrapper)(jnp.arange(3.0)), [-0.0, -1.0, -4.0])
    shape = jax.eval_shape(wrapper, jax.ShapeDtypeStruct((2,), jnp.bfloat16))
    assert (shape.shape, shape.dtype) == ((2,), jnp.bfloat16)
    assert jax.checkpoint(wrapper)(3.0) == -9.0
    assert jax.tree_util.Partial(wrapper, 3.0)() == -9.0


def test_the_same_wrapper_is_traced_once() -> None:
    traces = []

    def stock(x: Any) -> Any:
        traces.append(x)
        return x * 2

    wrapper = ours(stock)
    for _ in range(3):
        assert jax.jit(wrapper)(1.0) == -2.0
    assert len(traces) == 1
