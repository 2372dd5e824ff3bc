"""Build the inner transformation of a step with its hyperparameters, and run it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import PyTree, cast, is_real
from ..._tally import count

if TYPE_CHECKING:
    from .hyperparameters import Widths

_UNLIKE = (
    *("same dtype", "accept dtype", "dtypes should", "dtypes must"),
    *("equal types", "equal output types", "identical types", "compatible types"),
)
"""What JAX says of operands and branches whose dtypes differ, from 0.4.13 to 0.10."""


class Factory(NamedTuple):
    """Builds the inner transformation of each step.

    Attributes:
      build: the user's function.
      static: names of the arguments that are passed on unchanged.
      defaults: names of the dtypes that the user left to the function, as ``dtype_momentum``.
      strong: names of the hyperparameters that promote half precision without the wrapper.
    """

    build: Callable[..., Any]
    static: frozenset[str]
    defaults: frozenset[str]
    strong: frozenset[str]


class Inner(NamedTuple):
    """The inner transformation of one step.

    Attributes:
      factory: builds it.
      arguments: of the factory, with hyperparameters of stock.
      used: the real hyperparameters as the step uses them.
      widths: of this step.
    """

    factory: Factory
    arguments: dict[str, Any]
    used: dict[str, Any]
    widths: Widths

    def build(self, dtype: Any = None) -> Any:
        """Build it, with hyperparameters of ``dtype`` in place of weakly typed ones."""
        given = {**self.arguments, **self.used}
        if self.widths.promotes:
            keeps_strong = self.widths.keeps_strong and dtype is None
            as_given = self.factory.static | (self.factory.strong if keeps_strong else frozenset())
            for name, value in self.arguments.items():
                if isinstance(value, np.generic) and name not in as_given and is_real(value):
                    given[name] = float(value)
            arrays = {name: x for name, x in self.used.items() if name not in as_given}
            given.update(_weak(arrays) if dtype is None else _cast(arrays, dtype))
        for name in self.factory.defaults:  # No dtypes that nobody asked for.
            given.pop(name, None)
        return self.factory.build(**given)

    def update(
        self, grads: PyTree, state: PyTree, params: PyTree, /, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        """Take a step.

        Functions of ``jax.lax`` do not promote. Stock gives them hyperparameters in the dtype of
        the params, and so does a second try where JAX refuses float32 for that reason.
        """

        def step(dtype: Any = None) -> tuple[PyTree, PyTree]:
            tx = _taking_extra_args(self.build(dtype))
            result: tuple[PyTree, PyTree] = tx.update(grads, state, params, **extra_args)
            return result

        try:
            return step()
        except (TypeError, ValueError) as error:  # ValueError comes from XLA, with old jax.
            if not (self.widths.promotes and _is_about_dtypes(error)):
                raise
        return step(self.widths.narrowest)


def _taking_extra_args(tx: Any) -> Any:
    import optax

    # From 0.1.5 on.
    return optax.with_extra_args_support(tx) if hasattr(optax, "with_extra_args_support") else tx


def _is_about_dtypes(error: Exception) -> bool:
    """Check for JAX's error about operands of two dtypes."""
    return type(error) in (TypeError, ValueError) and any(
        unlike in str(error) for unlike in _UNLIKE
    )


def _cast(arrays: dict[str, Any], dtype: Any) -> dict[str, Any]:
    return {name: cast(value, dtype) for name, value in arrays.items()}


def _weak(arrays: dict[str, Any]) -> dict[str, Any]:
    count("hyperparameter to a weak type", len(arrays))
    return dict(zip(arrays, weak(list(arrays.values())))) if arrays else {}


@functools.partial(jax.jit, inline=True)
def weak(arrays: list[Any]) -> list[Any]:
    """Give arrays of float32 or float64 a weak type. The values stay."""
    bind = jax.lax.convert_element_type_p.bind
    return [
        bind(array, **{**_parameters(), "new_dtype": array.dtype, "weak_type": True})
        for array in arrays
    ]


@functools.cache
def _parameters() -> dict[str, Any]:
    """List the parameters that the installed jax gives a cast: later ones have ``sharding``."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    jaxpr = jax.make_jaxpr(lambda x: x.astype(jnp.bfloat16))(scalar)
    (cast,) = jaxpr.eqns
    return dict(cast.params)
