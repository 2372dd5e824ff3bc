"""Keep hyperparameters in a state, and build the inner transformation with them."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    HALVES,
    REAL,
    PyTree,
    cast,
    dtype_of,
    dtypes_in,
    half_to_float32,
    is_half,
    is_half_dtype,
    is_inexact,
    is_real,
    is_weak,
    kind_of,
    leaves,
)
from ..._tally import count
from .._support.stock_dtypes import promotes_half

_UNLIKE = (
    *("same dtype", "accept dtype", "dtypes should", "dtypes must"),
    *("equal types", "equal output types", "identical types", "compatible types"),
)
"""What JAX says of operands and branches whose dtypes differ, from 0.4.13 to 0.10."""


def strong_names(bound: inspect.BoundArguments, requested: Any) -> frozenset[str]:
    """Name the hyperparameters that are arrays or schedules; all with ``hyperparam_dtype``.

    Without the wrapper an array promotes half precision, and a Python number does not. So stock's
    moments are float32 and right, from 0.2.8 on; before, with ``hyperparam_dtype``.
    """
    bound.apply_defaults()
    given = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given.update(given.pop(name))
    if requested is not None and not is_half(jax.ShapeDtypeStruct((), requested)):
        return frozenset(given)
    return frozenset(n for n, value in given.items() if callable(value) or promotes_half(value))


class Factory(NamedTuple):
    """Builds the inner transformation of each step.

    Attributes:
      build: the user's function.
      static: names of the arguments that are passed on unchanged.
      defaults: names of the dtypes that the user left to the function, as ``dtype_momentum``.
      strong: names of the hyperparameters that promote half precision without the wrapper.
      requested: the user's ``hyperparam_dtype``, if any; an argument from 0.1.4 on.
    """

    build: Callable[..., Any]
    static: frozenset[str]
    defaults: frozenset[str]
    strong: frozenset[str]
    requested: Any

    def inner(self, state: Any, like: PyTree, widest: Any) -> Inner:
        """Describe the inner transformation of a step.

        Args:
          state: of stock, with hyperparameters of stock, and all arguments for the inner state.
          like: the params, or what has their dtypes.
          widest: the widest dtype to keep a hyperparameter in, if the user gives none.
        """
        kept = {name: self._keep(value, widest) for name, value in state.hyperparams.items()}
        if self.requested is not None:
            requested = jax.dtypes.canonicalize_dtype(self.requested)
            widest = jnp.promote_types(requested, jnp.float32)
        floats = [dtype for dtype in dtypes_in(like) if kind_of(dtype) >= REAL]
        narrowest = min((jnp.finfo(dtype).bits for dtype in floats), default=64)
        promotes = narrowest < jnp.finfo(widest).bits
        mixed = promotes and len(floats) > 1
        return Inner(self, state.inner_state(), kept, like, promotes, mixed)

    def _keep(self, value: Any, widest: Any) -> Any:
        """Cast a hyperparameter to the dtype that the state keeps; the narrowest is float32."""
        value = jnp.asarray(value)  # From 0.2.8 on, in the dtype that the user gave it.
        if kind_of(value.dtype) != REAL:
            return value
        if self.requested is not None:
            return cast(value, jax.dtypes.canonicalize_dtype(self.requested))
        if is_half_dtype(value.dtype):
            return cast(value, jnp.float32)
        return cast(value, widest) if value.dtype.itemsize > widest.itemsize else value


class Inner(NamedTuple):
    """The inner transformation of one step.

    Attributes:
      factory: builds it.
      arguments: of the factory, with hyperparameters of stock.
      hyperparams: as the state keeps them.
      like: the params, or what has their dtypes.
      promotes: whether stock's strongly typed hyperparameters would promote a leaf.
      mixed: whether they would, and stock has them in one of several dtypes.
    """

    factory: Factory
    arguments: dict[str, Any]
    hyperparams: dict[str, Any]
    like: PyTree
    promotes: bool
    mixed: bool

    def build(self, dtype: Any = None) -> Any:
        """Build it, with hyperparameters of ``dtype`` in place of weakly typed ones."""
        static, strong = self.factory.static, self._strong() if dtype is None else ()

        def argument(name: str, value: Any) -> Any:
            is_scalar = isinstance(value, (jax.Array, np.generic)) and is_real(value)
            if name in static or not is_scalar:
                return value
            if isinstance(value, jax.Array):
                value = half_to_float32(value)
            if not self.promotes or name in strong:
                return value
            if isinstance(value, np.generic):
                return float(value)
            return weak(value) if dtype is None else cast(value, dtype)

        given = {**self.arguments, **self.hyperparams}
        # No dtypes that nobody asked for.
        wanted = (item for item in given.items() if item[0] not in self.factory.defaults)
        return self.factory.build(**{name: argument(name, value) for name, value in wanted})

    def _strong(self) -> frozenset[str]:
        """Name the hyperparameters that stay strong; JAX promotes float8 with nothing else."""
        halves = set(filter(is_half_dtype, dtypes_in(self.like))) if self.factory.strong else set()
        return self.factory.strong if halves and halves.issubset(HALVES) else frozenset()

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
            if not (self.promotes and _is_about_dtypes(error)):
                raise
        return step(_narrowest(self.like))


def _taking_extra_args(tx: Any) -> Any:
    import optax

    # From 0.1.5 on.
    return optax.with_extra_args_support(tx) if hasattr(optax, "with_extra_args_support") else tx


def _is_about_dtypes(error: Exception) -> bool:
    """Check for JAX's error about operands of two dtypes."""
    return type(error) in (TypeError, ValueError) and any(
        unlike in str(error) for unlike in _UNLIKE
    )


def _narrowest(tree: PyTree) -> Any:
    return min(map(dtype_of, filter(is_inexact, leaves(tree))), key=lambda d: jnp.finfo(d).bits)


def with_dtypes_of(state: Any, kept: dict[str, Any], *, narrows: bool) -> dict[str, Any]:
    """Cast hyperparameters back to their dtypes in the state; real ones only if that is asked."""
    schedules = getattr(state, "hyperparams_states", {})  # From 0.1.5 on.

    def back(name: str, value: Any) -> Any:
        before = jnp.asarray(state.hyperparams.get(name, value))
        if is_weak(before) or (not narrows and is_real(value) and is_real(before)):
            return value
        # A stateful schedule may start with an integer and go on with floats: they are left alone.
        # A state from stock may have an integer for a float, and the float is what the step uses.
        was_integer = jnp.issubdtype(before.dtype, jnp.integer)
        if was_integer and is_real(value) and _is_stateful(schedules.get(name)):
            return value
        return cast(value, before.dtype)

    return {name: back(name, value) for name, value in kept.items()}


def _is_stateful(state: Any) -> bool:
    """Check whether a state belongs to a user-defined schedule, not to one that counts steps."""
    return state is not None and type(state).__name__ != "WrappedScheduleState"


def weak(value: Any) -> Any:
    """Give an array of float32 or float64 a weak type. The value stays."""
    count(f"{value.dtype} to weak {value.dtype}")
    parameters = {**_parameters(), "new_dtype": value.dtype, "weak_type": True}
    return jax.lax.convert_element_type_p.bind(value, **parameters)


@functools.cache
def _parameters() -> dict[str, Any]:
    """List the parameters that the installed jax gives a cast: later ones have ``sharding``."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    jaxpr = jax.make_jaxpr(lambda x: x.astype(jnp.bfloat16))(scalar)
    (cast,) = jaxpr.eqns
    return dict(cast.params)
