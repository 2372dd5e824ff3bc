"""Settle the hyperparameters of a step, and build the inner transformation with them."""

from __future__ import annotations

import functools
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    HALVES,
    REAL,
    PyTree,
    array_dtypes,
    cast,
    dtype_of,
    have_same_dtypes,
    is_half_dtype,
    is_real,
    is_weak,
    kind_of,
    leaves,
)
from ..._contract.widths import promoted, widest_real
from ..._tally import count, paused
from .given import Given, dtype_in_step

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
      requested: the user's ``hyperparam_dtype``, if any; an argument from 0.1.4 on.
      given: the numbers that the user gave.
    """

    build: Callable[..., Any]
    static: frozenset[str]
    defaults: frozenset[str]
    strong: frozenset[str]
    requested: Any
    given: Given

    def inner(
        self, state: Any, scheduled: dict[str, Any], like: PyTree, dtype: Any, before: Any = None
    ) -> Inner:
        """Settle the hyperparameters of a step, and describe its inner transformation.

        Args:
          state: of stock, with hyperparameters of stock, and all arguments for the inner state.
          scheduled: what the schedules returned, not rounded.
          like: the params, or what has their dtypes.
          dtype: of a number in the state.
          before: the hyperparameters before this step; None in ``init``.
        """
        widths = _widths(dtypes_once(like), self.requested)
        unrounded: dict[str, Any] = {}
        if before is None:
            exact = {**self.given.values, **scheduled}
        else:
            exact = {**before, **scheduled}
            numbers = {name: x for name, x in before.items() if name not in scheduled}
            unrounded = self.given.unrounded(numbers, widths.step)
        kept, used = {}, {}
        for name, value in state.hyperparams.items():
            # From 0.2.8 on, an integer may be a Python number.
            stock = value if isinstance(value, jax.Array) else jnp.asarray(value)
            kept[name] = used[name] = stock
            if kind_of(stock.dtype) != REAL:
                continue
            if self.requested is not None:
                kept[name] = stock = cast(stock, self.requested)
            elif stock.dtype.itemsize > widths.step.itemsize:
                kept[name] = stock = cast(stock, widths.step)
            if name in unrounded:
                used[name] = unrounded[name]
                # A leaf that is narrower than a new one widens, and not to what it was rounded to.
                wider = dtype if dtype.itemsize > stock.dtype.itemsize else stock.dtype
                if wider != before[name].dtype:
                    kept[name] = cast(unrounded[name], wider)
                continue
            source = exact.get(name, stock)
            if self.requested is not None or not is_real(source):
                source = stock
            in_step = dtype_in_step(source, widths.step)
            if in_step == stock.dtype:
                source = stock
            elif not isinstance(source, jax.Array):
                source = jnp.asarray(source, in_step)
            used[name] = cast(source, in_step)
        return Inner(self, state.inner_state(), kept, used, like, *widths)


class _Widths(NamedTuple):
    """What the dtypes of the params mean for the hyperparameters of a step.

    Attributes:
      step: the widest dtype in which the step uses one.
      promotes: whether stock's strongly typed hyperparameters would promote a leaf.
      mixed: whether they would, and stock has them in one of several dtypes.
      keeps_strong: whether all half precision promotes; JAX promotes float8 with nothing else.
    """

    step: Any
    promotes: bool
    mixed: bool
    keeps_strong: bool


@functools.cache
def _widths(dtypes: tuple[Any, ...], requested: Any) -> _Widths:
    float32 = jnp.dtype(jnp.float32)
    step = widest_real(float32, *dtypes) if requested is None else promoted(requested, float32)
    floats = [dtype for dtype in dtypes if kind_of(dtype) >= REAL]
    narrowest = min((jnp.finfo(dtype).bits for dtype in floats), default=64)
    promotes = narrowest < jnp.finfo(step).bits
    halves = set(filter(is_half_dtype, dtypes))
    keeps_strong = bool(halves) and halves.issubset(HALVES)
    return _Widths(step, promotes, promotes and len(floats) > 1, keeps_strong)


def dtypes_once(tree: PyTree) -> tuple[Any, ...]:
    """List the dtypes in a tree, each once, in the order of the leaves."""
    return tuple(dict.fromkeys(array_dtypes(tree) or map(dtype_of, leaves(tree))))


@functools.cache
def dtype_of_stock(stock: Callable[..., Any], dtypes: tuple[Any, ...]) -> tuple[Any, bool]:
    """Find the dtype in which stock keeps a number in its state.

    Where stock raises, or makes a float something else, it is float32, or float64 if a param is.

    Args:
      stock: ``inject_hyperparams``.
      dtypes: of the params, each once, in the order of the leaves.

    Returns:
      The dtype, and whether it is stock's.
    """
    import optax

    def build(number: Any) -> Any:
        del number
        return optax.identity()

    found = dtypes[0] if dtypes else None
    if len(dtypes) > 1:
        shapes = [jax.ShapeDtypeStruct((), dtype) for dtype in dtypes]
        try:
            with paused():
                state = jax.eval_shape(stock(build)(1.0).init, shapes)
            found = state.hyperparams["number"].dtype
        except Exception:  # Of bfloat16 and float16, none is the highest.
            found = None
    is_usable = found is not None and kind_of(found) == REAL
    return (found if is_usable else widest_real(jnp.dtype(jnp.float32), *dtypes)), is_usable


class Inner(NamedTuple):
    """The inner transformation of one step.

    Attributes:
      factory: builds it.
      arguments: of the factory, with hyperparameters of stock.
      kept: the hyperparameters as the state keeps them.
      used: the hyperparameters as the step uses them.
      like: the params, or what has their dtypes.
      step: see :class:`_Widths`, as for the next ones.
      promotes: whether hyperparameters are weakly typed.
      mixed: whether they are, and stock has them in one of several dtypes.
      keeps_strong: whether those that were given as arrays are not.
    """

    factory: Factory
    arguments: dict[str, Any]
    kept: dict[str, Any]
    used: dict[str, Any]
    like: PyTree
    step: Any
    promotes: bool
    mixed: bool
    keeps_strong: bool

    def build(self, dtype: Any = None) -> Any:
        """Build it, with hyperparameters of ``dtype`` in place of weakly typed ones."""
        given = {**self.arguments, **self.used}
        if self.promotes:
            keeps_strong = self.keeps_strong and dtype is None
            kinds, arrays = (jax.Array, np.generic), {}
            for name, value in given.items():
                if name in self.factory.static or (keeps_strong and name in self.factory.strong):
                    continue
                if isinstance(value, kinds) and kind_of(value.dtype) == REAL:
                    arrays[name] = value
            for name in [name for name, x in arrays.items() if isinstance(x, np.generic)]:
                given[name] = float(arrays.pop(name))
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
    floats = (dtype for dtype in dtypes_once(tree) if kind_of(dtype) >= REAL)
    return min(floats, key=lambda dtype: jnp.finfo(dtype).bits)


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


def keep_kinds(kept: dict[str, Any], state: Any) -> dict[str, Any]:
    """Cast hyperparameters to their dtypes in a state where that has another kind of number.

    Stock up to 0.2.7 has integers or complex numbers where it computes floats. A stateful schedule
    may start with an integer and go on with floats: they are left alone.
    """
    if have_same_dtypes(kept, state.hyperparams):
        return kept
    schedules = getattr(state, "hyperparams_states", {})  # From 0.1.5 on.

    def back(name: str, value: Any) -> Any:
        before = state.hyperparams.get(name, value)
        if is_weak(before) or (is_real(value) and is_real(before)):
            return value
        was_integer = jnp.issubdtype(before.dtype, jnp.integer)
        if was_integer and is_real(value) and _is_stateful(schedules.get(name)):
            return value
        return cast(value, before.dtype)

    return {name: back(name, value) for name, value in kept.items()}


def _is_stateful(state: Any) -> bool:
    """Check whether a state belongs to a user-defined schedule, not to one that counts steps."""
    return state is not None and type(state).__name__ != "WrappedScheduleState"
