"""Leave 64-bit mode on jax before 0.7.2.

It compiles the constants of a trace in the mode at the end of the trace, and then they do not fit
their operations. So they are cast here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import jax
import numpy as np

from .dtypes import PyTree, cast, leaves

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def run_in_32_bits(
    in_32_bits: AbstractContextManager[None], function: Callable[..., Any], *args: PyTree
) -> PyTree:
    """Trace ``function(*args)`` in 32-bit mode, which ``in_32_bits`` enters, and run that."""
    # On lists of leaves, because a user-defined node may accept nothing but arrays.
    given: Any = jax.tree_util.tree_structure(args)
    results_in: list[Any] = []

    def flat_function(*flat: Any) -> list[Any]:
        result = function(*given.unflatten(flat))
        results_in.append(jax.tree_util.tree_structure(result))
        return leaves(result)

    with in_32_bits:
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
