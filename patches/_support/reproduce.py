"""Shows a fault abstractly: shapes, dtypes and weak types of one step, nothing computed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..._contract.check import TracedStep
from ..._contract.dtypes import tree_map

PyTree = Any


def shapes(dtype: Any, *more: Any) -> PyTree:
    """Abstract params: ``w`` of shape (3, 4) and the first dtype, ``b`` of (4,) and the last."""
    last = more[-1] if more else dtype
    return {"w": jax.ShapeDtypeStruct((3, 4), dtype), "b": jax.ShapeDtypeStruct((4,), last)}


def ones(dtype: Any) -> PyTree:
    """Concrete params of the same shapes."""
    return {"w": jnp.ones((3, 4), dtype), "b": jnp.ones((4,), dtype)}


def contrib(optax: Any, name: str) -> Any:
    """Return ``optax.contrib.<name>``, or None on a release that has no such function."""
    return getattr(getattr(optax, "contrib", None), name, None)


def drifting(optax: Any) -> Any:
    """Build a transformation that returns float32 whatever it is given, as many still do."""

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        del params
        trace = tree_map(lambda g, t: jnp.asarray(g, jnp.float32) + t, grads, state)
        return trace, trace

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
    """Traces ``init`` and one ``update`` and describes the first leaf that breaks the contract.

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
    grads = params if grads is None else grads
    problem = TracedStep(tx, params, grads, extra_args, state_asks=state_asks)
    found = (str(v) for v in problem.step() if inside or v.kind != "float64")
    return next(found, None)
