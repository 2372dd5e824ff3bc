"""Check the contract by running JAX, independently of `optax_dtypefix.check`."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp

from optax_dtypefix._diagnosis.jaxpr import equations
from support.trees import leaves, tree_map, types


def assert_keeps_the_contract(
    tx: Any, params: Any, grads: Any = None, extra: Callable[[Any], dict[str, Any]] | None = None
) -> None:
    """Assert C1 and C2 under jit, in scan around cond, and in vmap. Nothing is compiled.

    The state keeps its types, weak types too, so a step is traced once and compiled once.
    """
    grads = params if grads is None else grads

    def step(grads: Any, state: Any, params: Any) -> Any:
        return tx.update(grads, state, params, **(extra(params) if extra is not None else {}))

    state = tx.init(params)
    expected, structure = types(state), jax.tree_util.tree_structure(state)
    jaxpr, (updates, new_state) = jax.make_jaxpr(step, return_shape=True)(grads, state, params)
    avals = jaxpr.out_avals[len(leaves(updates)) :]
    assert [(x.shape, x.dtype, x.weak_type) for x in avals] == expected
    assert jax.tree_util.tree_structure(new_state) == structure
    assert_within_the_bound(updates, grads, params)

    def body(state: Any, keep: Any) -> Any:
        def update(state: Any) -> Any:
            return step(grads, state, params)[1]

        return jax.lax.cond(keep, lambda state: state, update, state), None

    after, _ = jax.eval_shape(lambda s: jax.lax.scan(body, s, jnp.asarray([True, False])), state)
    assert [leaf.dtype for leaf in leaves(after)] == [dtype for _, dtype, _ in expected]

    def batched(tree: Any) -> Any:
        return tree_map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), tree)

    _, after = jax.eval_shape(jax.vmap(step), batched(grads), batched(state), batched(params))
    assert [(leaf.shape[1:], leaf.dtype) for leaf in leaves(after)] == [
        (shape, dtype) for shape, dtype, _ in expected
    ]


def assert_within_the_bound(updates: Any, grads: Any, params: Any) -> None:
    """Assert C2: no update is wider than its gradient and param, and none loses a fraction."""
    for update, grad, param in zip(leaves(updates), leaves(grads), leaves(params)):
        given = [x.dtype for x in (grad, param) if jnp.issubdtype(x.dtype, jnp.inexact)]
        if len(set(given)) == 1:
            assert update.dtype == given[0]
        elif given:
            assert jnp.issubdtype(update.dtype, jnp.inexact)
            assert update.dtype.itemsize <= jnp.result_type(*given).itemsize
        else:  # An update may stay a float, which apply_updates rounds.
            assert update.dtype.itemsize <= 4


def float64_in(function: Callable[..., Any], *args: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the float64 values that a function computes, from its jaxpr."""
    jaxpr = jax.make_jaxpr(function)(*args)
    return [
        variable.aval.shape
        for equation in equations(jaxpr.jaxpr)
        for variable in equation.outvars
        if getattr(variable.aval, "dtype", None) == jnp.float64
    ]
