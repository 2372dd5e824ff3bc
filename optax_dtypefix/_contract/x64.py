"""Enter and leave the 64-bit mode of JAX."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from .._tally import count
from .dtypes import PyTree, cast, leaves

if TYPE_CHECKING:
    from collections.abc import Iterator


_64_BITS = ("float64", "complex128", "int64", "uint64")


@contextlib.contextmanager
def x64(enabled: bool = True) -> Iterator[None]:
    """Switch 64-bit mode on, or off, in this thread."""
    if hasattr(jax, "enable_x64"):  # From jax 0.8 on; the one below is gone in 0.10.
        manager = jax.enable_x64(enabled)
    else:
        from jax.experimental import enable_x64  # type: ignore[attr-defined]

        manager = enable_x64(enabled)
    with manager:
        yield


def is_x64() -> bool:
    """Check whether JAX is in 64-bit mode, in this thread."""
    return bool(jnp.result_type(float) == jnp.float64)


def without_x64(function: Callable[..., Any], *args: PyTree) -> PyTree:
    """Call ``function(*args)`` in 32-bit mode, so that Python scalars and counts make no float64.

    Stock code like ``1 - 0.9**count`` is float64 in 64-bit mode. In 32-bit mode, or if an argument
    has 64 bits, nothing changes. The closure of the function is narrowed to 32 bits.

    Args:
      function: takes and returns trees of arrays.
      *args: trees of arrays.

    Returns:
      The result of the function.
    """
    wide = any(str(getattr(leaf, "dtype", "")) in _64_BITS for leaf in leaves(args))
    if wide or not is_x64():
        return function(*args)
    count("run in 32-bit mode")
    if jax.__version_info__ >= (0, 7, 2):
        with x64(False):
            return function(*args)
    # Older jax compiles the constants of a trace in the mode at the end of the trace, and then they
    # do not fit their operations. So they are cast here.
    # On lists of leaves, because a user-defined node may accept nothing but arrays.
    given: Any = jax.tree_util.tree_structure(args)
    results_in: list[Any] = []

    def flat_function(*flat: Any) -> list[Any]:
        result = function(*given.unflatten(flat))
        results_in.append(jax.tree_util.tree_structure(result))
        return leaves(result)

    with x64(False):
        closed = jax.make_jaxpr(flat_function)(*leaves(args))
    _fit_literals(closed.jaxpr)
    inputs = [*zip(closed.consts, closed.jaxpr.constvars), *zip(leaves(args), closed.jaxpr.invars)]
    fitted = [cast(value, variable.aval.dtype) for value, variable in inputs]
    consts, flat_args = fitted[: len(closed.consts)], fitted[len(closed.consts) :]
    results = jax.core.eval_jaxpr(closed.jaxpr, consts, *flat_args)
    return results_in[0].unflatten(results)


def _fit_literals(jaxpr: Any) -> None:
    """Give each literal of a jaxpr, and of those nested in it, the dtype that it stands for."""
    for equation in jaxpr.eqns:
        for inner in subjaxprs(equation):
            _fit_literals(inner)
    for variable in (*jaxpr.outvars, *(v for e in jaxpr.eqns for v in e.invars)):
        if hasattr(variable, "val"):
            variable.val = np.asarray(variable.val, variable.aval.dtype)[()]


def subjaxprs(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation, such as ``cond`` or ``scan``, has for parameters."""
    for value in equation.params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                yield inner
