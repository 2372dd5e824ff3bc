"""Walk a traced program and the programs nested in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from .._contract.old_x64 import subjaxprs

if TYPE_CHECKING:
    from collections.abc import Iterator

DOUBLE = (jnp.float64, jnp.complex128)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield all equations of a jaxpr and of those nested in it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in subjaxprs(equation):
            yield from equations(inner)


def float64_inside(jaxpr: Any) -> bool:
    """Check whether any value in a jaxpr, or in one nested in it, is a float64 array.

    A scalar does not count: Python numbers are float64 in 64-bit mode, and cost nothing.
    """
    return any(
        getattr(variable.aval, "dtype", None) in DOUBLE and variable.aval.shape
        for equation in equations(jaxpr)
        for variable in equation.outvars
    )
