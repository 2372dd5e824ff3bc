"""Reproduce a fault abstractly: shapes, dtypes and weak types of one step, nothing computed."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..._contract.dtypes import is_half, tree_map
from ..._engine.patch import NotInReleaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PyTree = Any


def shapes(dtype: Any, *more: Any) -> PyTree:
    """Return abstract params: ``w`` of shape (3, 4), ``b`` of shape (4,) and the last dtype."""
    last = more[-1] if more else dtype
    return {"w": jax.ShapeDtypeStruct((3, 4), dtype), "b": jax.ShapeDtypeStruct((4,), last)}


def ones(dtype: Any) -> PyTree:
    """Return concrete params of the same shapes."""
    return {"w": jnp.ones((3, 4), dtype), "b": jnp.ones((4,), dtype)}


def public(optax: Any, path: str, *, parameter: str | None = None) -> Any:
    """Look up a public function, such as ``contrib.prodigy``.

    Raises:
      NotInReleaseError: the installed optax has no such function, or none with this parameter.
    """
    found = optax
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None or (parameter and parameter not in inspect.signature(found).parameters):
        raise NotInReleaseError(path)
    return found


def all_public(optax: Any, *paths: str) -> dict[str, Any]:
    """Look up those of some public functions that the installed optax has, by their paths."""
    found: dict[str, Any] = {}
    for path in paths:
        with contextlib.suppress(NotInReleaseError):
            found[path] = public(optax, path)
    return found


def first_not_float32(state: Any, names: Iterable[str]) -> str | None:
    """Describe the first of some fields of a state, or of its parts, that is not float32."""
    for part in (state, *state):
        for name in names:
            leaf = getattr(part, name, None)
            if leaf is not None and leaf.dtype != jnp.float32:
                return f"{name} is {leaf.dtype}"
    return None


def drifting(optax: Any) -> Any:
    """Build a transformation that returns float32 whatever it is given, as many still do."""

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        del state, params
        wide = tree_map(lambda g: jnp.asarray(g, jnp.float32), grads)
        return wide, wide

    return optax.GradientTransformation(lambda params: tree_map(jnp.zeros_like, params), update)


def one_step(
    tx: Any,
    params: PyTree,
    grads: PyTree = None,
    *,
    inside: bool = False,
    state_asks: bool = False,
    **extra_args: Any,
) -> str | None:
    """Trace ``init`` and one ``update``, and describe the first leaf that breaks the contract.

    Args:
      tx: the transformation.
      params: tree of arrays or ``jax.ShapeDtypeStruct``.
      grads: likewise; like the params if not given.
      inside: whether float64 arithmetic inside counts too, if no input is float64.
      state_asks: whether an update may be as wide as the state that is kept for its param.
      **extra_args: passed to ``update``, abstractly where they are arrays or shapes.

    Returns:
      None if state and updates keep their shapes, dtypes and weak types.
    """
    from ..._contract.check import TracedStep

    grads = params if grads is None else grads
    problem = TracedStep(tx, params, grads, extra_args, state_asks=state_asks)
    found = (str(v) for v in problem.step() if inside or v.kind != "float64")
    return next(found, None)


def in_half(function: Callable[..., Any], tree: PyTree) -> str | None:
    """Describe the first operation of a function that is done in half precision."""
    from ..._contract.jaxpr import equations

    operations = ("add", "mul", "square", "integer_pow", "sqrt")
    for equation in equations(jax.make_jaxpr(function)(tree).jaxpr):
        name, out = equation.primitive.name, equation.outvars[0].aval
        if name in operations and is_half(out):
            return f"{name} in {out.dtype}"
    return None
