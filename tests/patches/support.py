"""What the tests of the patches share: small problems, and the contract checked by running JAX."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

tree_map = jax.tree_util.tree_map
leaves = jax.tree_util.tree_leaves


def tree_of(dtype: Any, *more: Any, seed: int = 0) -> dict[str, Any]:
    """A matrix of the first dtype and a vector of the last, with values near one."""
    random = np.random.default_rng(seed)
    last = more[-1] if more else dtype
    return {
        "w": jnp.asarray(random.normal(size=(3, 4)), dtype),
        "b": jnp.asarray(random.normal(size=(4,)), last),
    }


def drifting() -> Any:
    """Changes the dtypes of updates and state, as a careless transformation of a user may."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        total = tree_map(lambda g, t: jnp.asarray(g, jnp.float32) + t, grads, state)
        return total, total

    return optax.GradientTransformation(lambda params: tree_map(jnp.zeros_like, params), update)


REGIMES = {
    "float32": (False, (jnp.float32,)),
    "bfloat16": (False, (jnp.bfloat16,)),
    "float16": (False, (jnp.float16,)),
    "mixed": (False, (jnp.bfloat16, jnp.float32)),
    "halves": (False, (jnp.bfloat16, jnp.float16)),
    "integer leaf": (False, (jnp.float32, jnp.int32)),
    "float32 x64": (True, (jnp.float32,)),
    "bfloat16 x64": (True, (jnp.bfloat16,)),
    "float64 x64": (True, (jnp.float64,)),
    "mixed x64": (True, (jnp.float32, jnp.float64)),
    "integer leaf x64": (True, (jnp.float32, jnp.int64)),
}
"""Whether 64-bit mode is on, and what :func:`tree_of` is given."""


def in_float64(tree: Any) -> Any:
    """The leaves as float64 arrays of numpy."""
    return tree_map(lambda leaf: np.asarray(leaf).astype(np.float64), tree)


def train(tx: Any, params: Any, goal: Any, steps: int, told: Callable[[Any], Any]) -> Any:
    """Steps on |x - goal|^2 / 2: params and state after them, and what is told of each state."""

    def step(carry: Any, _: None) -> Any:
        params, state = carry
        grads = tree_map(lambda p, t: (p - t).astype(p.dtype), params, goal)
        updates, state = tx.update(grads, state, params)
        params = tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        return (params, state), told(state)

    carry = params, tx.init(params)
    return jax.jit(lambda c: jax.lax.scan(step, c, None, length=steps))(carry)


def types(tree: Any) -> list[tuple[Any, ...]]:
    """Shape, dtype and weak type of each leaf."""
    return [(leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in leaves(tree)]


def assert_keeps_the_contract(
    tx: Any, params: Any, grads: Any = None, extra: Callable[[Any], dict[str, Any]] | None = None
) -> None:
    """C1 and C2, under jit with one trace, in scan around cond(pred, update, keep), and in vmap."""
    grads = params if grads is None else grads
    traces = []

    def step(grads: Any, state: Any, params: Any) -> Any:
        traces.append(None)
        return tx.update(grads, state, params, **(extra(params) if extra is not None else {}))

    state = tx.init(params)
    expected, structure = types(state), jax.tree_util.tree_structure(state)
    jitted = jax.jit(step)
    for _ in range(3):
        updates, state = jitted(grads, state, params)
        assert types(state) == expected
        assert jax.tree_util.tree_structure(state) == structure
        assert_within_the_bound(updates, grads, params)
    assert len(traces) == 1

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
    """C2: no update is wider than its gradient and its param, and none loses a fraction."""
    for update, grad, param in zip(leaves(updates), leaves(grads), leaves(params)):
        given = [x.dtype for x in (grad, param) if jnp.issubdtype(x.dtype, jnp.inexact)]
        if len(set(given)) == 1:
            assert update.dtype == given[0]
        elif given:
            assert jnp.issubdtype(update.dtype, jnp.inexact)
            assert update.dtype.itemsize <= jnp.result_type(*given).itemsize
        else:  # Stock's float stays, which apply_updates rounds.
            assert update.dtype.itemsize <= 4


def float64_in(function: Callable[..., Any], *args: Any) -> list[tuple[int, ...]]:
    """Shapes of the float64 values that a function computes, by its jaxpr."""
    from optax_dtypefix._contract.jaxpr import equations

    jaxpr = jax.make_jaxpr(function)(*args)
    return [
        variable.aval.shape
        for equation in equations(jaxpr.jaxpr)
        for variable in equation.outvars
        if getattr(variable.aval, "dtype", None) == jnp.float64
    ]
