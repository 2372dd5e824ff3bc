"""Shows a fault abstractly: shapes, dtypes and weak types of one step, nothing computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from collections.abc import Iterator

PyTree = Any


def shapes(dtype: Any, *more: Any) -> PyTree:
    """Abstract params: ``w`` of shape (3, 4) and the first dtype, ``b`` of (4,) and the last."""
    last = more[-1] if more else dtype
    return {"w": jax.ShapeDtypeStruct((3, 4), dtype), "b": jax.ShapeDtypeStruct((4,), last)}


def ones(dtype: Any) -> PyTree:
    """Concrete params of the same shapes."""
    return {"w": jnp.ones((3, 4), dtype), "b": jnp.ones((4,), dtype)}


def contrib(name: str) -> Any:
    """``optax.contrib.<name>``, or None on a release that has no such function."""
    import optax

    return getattr(getattr(optax, "contrib", None), name, None)


def one_step(
    tx: Any,
    params: PyTree,
    grads: PyTree = None,
    *,
    inside: bool = False,
    extra: Callable[[PyTree, PyTree], dict[str, Any]] | None = None,
) -> str | None:
    """Traces ``init`` and one ``update`` and describes the first leaf that breaks the contract.

    Args:
      tx: the transformation.
      params: tree of arrays or ``jax.ShapeDtypeStruct``.
      grads: likewise; like the params if not given.
      inside: whether float64 arithmetic inside is looked for too, if no input is float64.
      extra: gives the extra arguments of ``update`` for params and gradients.

    Returns:
      None if state and updates keep their shapes, dtypes and weak types.
    """
    grads = params if grads is None else grads

    def run(params: PyTree, grads: PyTree) -> tuple[PyTree, PyTree, PyTree]:
        state = tx.init(params)
        extra_args = extra(params, grads) if extra is not None else {}
        updates, new_state = tx.update(grads, state, params, **extra_args)
        return updates, state, new_state

    jaxpr, trees = jax.make_jaxpr(run, return_shape=True)(params, grads)
    found = _Avals(jaxpr, trees)
    for (path, was), (_, now) in zip(found.leaves_of(1), found.leaves_of(2)):
        if describe(was) != describe(now):
            return f"state{path} turns from {describe(was)} into {describe(now)}"
    grad_leaves = jax.tree_util.tree_leaves(grads)
    for grad, (path, now) in zip(grad_leaves, found.leaves_of(0)):
        if grad.dtype != now.dtype:
            return f"updates{path} are {now.dtype} for gradients that are {grad.dtype}"
    if inside and float64_inside(jaxpr.jaxpr):
        return "float64 arithmetic inside, although no input is float64"
    return None


def describe(aval: Any) -> str:
    """Dtype and shape of an abstract value, and whether it is weakly typed."""
    weak = "weak " if getattr(aval, "weak_type", False) else ""
    return f"{weak}{aval.dtype}{list(aval.shape)}"


def float64_inside(jaxpr: Any) -> bool:
    """Whether any value in a jaxpr, or in one nested in it, is a float64 array."""
    for equation in equations(jaxpr):
        for variable in equation.outvars:
            if getattr(variable.aval, "dtype", None) in (jnp.float64, jnp.complex128):
                return True
    return False


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr and of those nested in it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


class _Avals:
    """Output trees of a jaxpr with their abstract values, which alone know weak types."""

    def __init__(self, jaxpr: Any, trees: tuple[PyTree, ...]) -> None:
        self._avals = list(jaxpr.out_avals)
        self._trees = trees

    def leaves_of(self, index: int) -> list[tuple[str, Any]]:
        start = sum(len(jax.tree_util.tree_leaves(tree)) for tree in self._trees[:index])
        paths = jax.tree_util.tree_flatten_with_path(self._trees[index])[0]
        return [
            (jax.tree_util.keystr(path), self._avals[start + offset])
            for offset, (path, _) in enumerate(paths)
        ]
