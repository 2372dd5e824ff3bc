"""Find what the state keeps of each hyperparameter, and what the step uses in place of it."""

from __future__ import annotations

import functools
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    HALVES,
    REAL,
    cast,
    dtype_of,
    is_array,
    is_half_dtype,
    is_real,
    is_weak,
    kind_of,
)
from ..._contract.widths import promoted, widest_real
from ..._tally import count, paused
from .._support.stock_dtypes import promotes_half


class Widths(NamedTuple):
    """What the dtypes of the params mean for the hyperparameters of a step.

    Attributes:
      stock: the dtype in which stock keeps a number in its state; float32, or float64 if a param
        is, where stock raises or makes a float something else.
      is_stocks: whether it is stock's.
      step: the dtype in which the step uses a number.
      narrowest: the narrowest dtype of floats among the params.
      promotes: whether stock's strongly typed hyperparameters would promote a leaf.
      mixed: whether they would, and stock has them in one of several dtypes.
      keeps_strong: whether all half precision promotes; JAX promotes float8 with nothing else.
    """

    stock: Any
    is_stocks: bool
    step: Any
    narrowest: Any
    promotes: bool
    mixed: bool
    keeps_strong: bool


@functools.cache
def widths_of(stock: Callable[..., Any], dtypes: tuple[Any, ...], requested: Any) -> Widths:
    """Settle the widths of hyperparameters.

    Args:
      stock: ``inject_hyperparams``.
      dtypes: of the params, each once, in the order of the leaves.
      requested: the user's ``hyperparam_dtype``, if any.
    """
    float32 = jnp.dtype(jnp.float32)
    found = dtypes[0] if dtypes else None
    if len(dtypes) > 1:
        try:
            found = _dtype_in_state(
                stock, 1.0, [jax.ShapeDtypeStruct((), dtype) for dtype in dtypes]
            )
        except Exception:  # Of bfloat16 and float16, none is the highest.
            found = None
    is_stocks = found is not None and kind_of(found) == REAL
    widest = widest_real(float32, *dtypes)
    step = widest if requested is None else promoted(requested, float32)
    floats = [dtype for dtype in dtypes if kind_of(dtype) >= REAL]
    narrowest = min(floats, key=lambda dtype: jnp.finfo(dtype).bits, default=step)
    promotes = bool(floats) and jnp.finfo(narrowest).bits < jnp.finfo(step).bits
    halves = set(filter(is_half_dtype, dtypes))
    return Widths(
        requested or (found if is_stocks else widest),
        is_stocks,
        step,
        narrowest,
        promotes,
        promotes and len(floats) > 1,
        bool(halves) and halves.issubset(HALVES),
    )


@functools.cache
def keeps_arrays(stock: Callable[..., Any]) -> bool:
    """Check whether stock leaves arrays as they are, and rounds numbers alone: from 0.2.8 on."""
    value, param = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.float32, jnp.bfloat16))
    return bool(_dtype_in_state(stock, value, param) == jnp.float32)


def _dtype_in_state(stock: Callable[..., Any], value: Any, params: Any) -> Any:
    import optax

    def build(number: Any) -> Any:
        del number
        return optax.identity()

    def start(value: Any, params: Any) -> Any:
        return stock(build)(value).init(params).hyperparams["number"]

    with paused():
        return jax.eval_shape(start, value, params).dtype


def strong_names(arguments: dict[str, Any], requested: Any) -> frozenset[str]:
    """Name the hyperparameters that are arrays or schedules; all with ``hyperparam_dtype``.

    Without the wrapper an array promotes half precision, and a Python number does not. So stock's
    moments are float32 and right, from 0.2.8 on; before, with ``hyperparam_dtype``.
    """
    if requested is not None and not is_half_dtype(requested):
        return frozenset(arguments)
    return frozenset(n for n, value in arguments.items() if callable(value) or promotes_half(value))


class Given:
    """The numbers that a factory was given, and the hyperparameters that stand for them.

    Concrete arrays are copied to the host: the user may donate them, or keep the state on other
    devices than theirs.
    """

    def __init__(self, stock: Callable[..., Any], arguments: dict[str, Any], requested: Any):
        from optax._src import base

        self._stock, self._requested = stock, requested
        self._numbers = {
            name: _on_host(value)
            for name, value in arguments.items()
            # A requested rounding stands.
            if requested is None
            and (isinstance(value, float) or is_array(value))
            and is_real(value)
        }
        stateful: Any = getattr(base, "StatefulSchedule", ())  # From 0.1.8 on.
        self._stateful = {n for n, value in arguments.items() if isinstance(value, stateful)}
        self._pairs: dict[Any, tuple[Any, Any] | None] = {}

    def settle(
        self, hyperparams: dict[str, Any], widths: Widths, before: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the hyperparameters as the state keeps them, and the real ones as used.

        Args:
          hyperparams: of stock: in ``init`` rounded, in ``update`` wide.
          widths: of this step.
          before: the hyperparameters before this step; None in ``init``.
        """
        step = widths.step
        unrounded = self._unrounded(hyperparams if before is None else before, step)
        kept, used = {}, {}
        for name, value in hyperparams.items():
            # From 0.2.8 on, an integer may be a Python number.
            new = exact = value if isinstance(value, jax.Array) else jnp.asarray(value)
            if kind_of(new.dtype) == REAL:
                if self._requested is not None:
                    new = cast(new, self._requested)
                elif new.dtype.itemsize > step.itemsize:
                    new = cast(new, step)
                exact = unrounded.get(name, new)
                used[name] = exact if exact.dtype == step else cast(exact, step)
            kept[name] = new
            if before is not None and name in before:
                leaf = before[name]
                if name in unrounded and leaf.dtype == widths.stock and isinstance(leaf, jax.Array):
                    kept[name] = leaf
                else:
                    kept[name] = self._fit(name, exact, leaf, widths)
            elif before is not None and name in used:
                kept[name] = cast(exact, widths.stock)
        return kept, used

    def _fit(self, name: str, value: Any, leaf: Any, widths: Widths) -> Any:
        """Cast a hyperparameter to the dtype that it has in stock's state after ``leaf``.

        Stock up to 0.2.7 has integers or complex numbers where it computes floats. A stateful
        schedule may start with an integer and go on with floats: they are left alone.
        """
        if is_real(value) and (is_weak(leaf) or is_real(leaf)):
            dtype = widths.stock
            if keeps_arrays(self._stock) and isinstance(leaf, jax.Array) and not is_weak(leaf):
                dtype = max(leaf.dtype, dtype, key=_size)
            return cast(value, min(dtype, value.dtype, key=_size))
        starts_as_integer = is_real(value) and name in self._stateful
        if is_weak(leaf) or (starts_as_integer and jnp.issubdtype(leaf.dtype, jnp.integer)):
            return value
        return cast(value, leaf.dtype)

    def _unrounded(self, hyperparams: dict[str, Any], widest: Any) -> dict[str, Any]:
        """Return the number that was given, in ``widest``, for each array that is its rounding.

        An array of any other value, or NaN, is returned as it is, as wide.
        """
        rows = {}
        for name, value in self._numbers.items():
            leaf: Any = hyperparams.get(name)
            if not hasattr(leaf, "dtype") or getattr(leaf, "weak_type", False):
                continue
            if kind_of(leaf.dtype) == REAL and np.shape(value) in ((), leaf.shape):
                key = name, leaf.dtype, widest
                pair = self._pairs[key] if key in self._pairs else self._pair(*key)
                if pair is not None:
                    rows[name] = leaf, *pair
        if not rows:
            return {}
        count("rounded hyperparameter to what was given", len(rows))
        return dict(zip(rows, _unrounded(list(rows.values()))))

    def _pair(self, name: str, narrow: Any, wide: Any) -> tuple[Any, Any] | None:
        """Return what was given, rounded and not; None if it is no wider than the leaf."""
        value, pair = self._numbers[name], None
        if narrow.itemsize < wide.itemsize and narrow != dtype_of(value):
            if isinstance(value, jax.Array):  # Not kept: no tracer may outlive its trace.
                return cast(value, narrow), cast(value, wide)
            with np.errstate(over="ignore"):  # Stock has warned, or not.
                pair = np.asarray(value).astype(narrow), np.asarray(value).astype(wide)
        self._pairs[name, narrow, wide] = pair
        return pair


def _size(dtype: Any) -> int:
    return int(dtype.itemsize)


def _on_host(value: Any) -> Any:
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        return value
    readable = value.is_fully_addressable or value.is_fully_replicated
    return jax.device_get(value) if readable else value


@functools.partial(jax.jit, inline=True)
def _unrounded(rows: list[tuple[Any, Any, Any]]) -> list[Any]:
    return [_choose(*row) for row in rows]


@jax.custom_jvp
def _choose(leaf: Any, rounded: Any, given: Any) -> Any:
    return jnp.where(leaf == rounded, given, leaf.astype(given.dtype))


def _choose_jvp(primals: Any, tangents: Any) -> Any:
    """Pass on the derivative by what was given, if there is one; else that by the leaf.

    A state that ``init`` made within the derivative has both, and its own is rounded.
    """
    (leaf, rounded, _), (by_leaf, _, by_given) = primals, tangents
    result = _choose(*primals)
    zero = jax.custom_derivatives.SymbolicZero
    tangent = jnp.zeros_like(result) if isinstance(by_leaf, zero) else by_leaf.astype(result.dtype)
    if not isinstance(by_given, zero):
        tangent = jnp.where(leaf == rounded, by_given, tangent)
    return result, tangent


_choose.defjvp(_choose_jvp, symbolic_zeros=True)
