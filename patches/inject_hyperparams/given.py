"""Find the values that were given, where a state holds stock's rounding of them."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    REAL,
    cast,
    dtype_of,
    is_array,
    is_half_dtype,
    is_real,
    is_weak,
    kind_of,
)
from ..._tally import count
from .._support.stock_dtypes import promotes_half

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEDULED: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("scheduled")


@contextlib.contextmanager
def schedules_recorded() -> Iterator[dict[str, Any]]:
    """Record what schedules return while stock runs, before stock rounds it."""
    token = _SCHEDULED.set({})
    try:
        yield _SCHEDULED.get()
    finally:
        _SCHEDULED.reset(token)


def recorded(name: str, schedule: Callable[..., Any]) -> Any:
    """Wrap the schedule of a hyperparameter, so that its values are recorded."""
    from optax._src import base

    def value(*args: Any, **kwargs: Any) -> Any:
        result = _SCHEDULED.get()[name] = schedule(*args, **kwargs)
        return result

    stateful = getattr(base, "StatefulSchedule", None)  # From 0.1.8 on.
    is_stateful = stateful is not None and isinstance(schedule, stateful)
    return _recorded_class(stateful)(schedule, value) if is_stateful else value


@functools.cache  # A class is freed by the collector alone, and would keep the schedule until then.
def _recorded_class(stateful: Any) -> Any:
    class Recorded(stateful):  # type: ignore[misc]
        def __init__(self, schedule: Any, value: Callable[..., Any]) -> None:
            self._schedule, self._value = schedule, value

        def init(self) -> Any:
            return self._schedule.init()

        def update(self, state: Any, **extra_args: Any) -> Any:
            return self._schedule.update(state, **extra_args)

        def __call__(self, state: Any, **extra_args: Any) -> Any:
            return self._value(state, **extra_args)

    return Recorded


def strong_names(arguments: dict[str, Any], requested: Any) -> frozenset[str]:
    """Name the hyperparameters that are arrays or schedules; all with ``hyperparam_dtype``.

    Without the wrapper an array promotes half precision, and a Python number does not. So stock's
    moments are float32 and right, from 0.2.8 on; before, with ``hyperparam_dtype``.
    """
    if requested is not None and not is_half_dtype(requested):
        return frozenset(arguments)
    return frozenset(n for n, value in arguments.items() if callable(value) or promotes_half(value))


def dtype_in_step(value: Any, widest: Any) -> Any:
    """Choose the dtype in which a step uses a real number: float32 or wider, at most ``widest``."""
    dtype = dtype_of(value)
    if is_weak(value) or dtype.itemsize > widest.itemsize:
        return widest
    return jnp.dtype(jnp.float32) if is_half_dtype(dtype) else dtype


class Given:
    """The real numbers that a factory was given, by name; none where the user asks for a rounding.

    Concrete arrays are copied to the host: the user may donate them, or keep the state on other
    devices than theirs.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.values = {
            name: _on_host(value)
            for name, value in arguments.items()
            if (isinstance(value, float) or is_array(value)) and is_real(value)
        }
        self._pairs: dict[Any, tuple[Any, Any] | None] = {}

    def unrounded(self, hyperparams: dict[str, Any], widest: Any) -> dict[str, Any]:
        """Return the value that was given for each hyperparameter that is its rounding.

        A hyperparameter of any other value, or NaN, is returned as it is.

        Args:
          hyperparams: of a state.
          widest: the widest dtype in which a step uses one.

        Returns:
          Those arrays of the state that are narrower than what was given, in the wider dtype.
        """
        rows = {}
        for name, leaf in hyperparams.items():
            value = self.values.get(name)
            if value is None or not hasattr(leaf, "dtype") or getattr(leaf, "weak_type", False):
                continue
            if kind_of(leaf.dtype) == REAL and np.shape(value) in ((), leaf.shape):
                pair = self._pair(name, leaf.dtype, widest)
                if pair is not None:
                    rows[name] = leaf, *pair
        if not rows:
            return {}
        count("rounded hyperparameter to what was given", len(rows))
        return dict(zip(rows, _unrounded(list(rows.values()))))

    def _pair(self, name: str, narrow: Any, widest: Any) -> tuple[Any, Any] | None:
        """Return what was given, rounded and not; None if it is no wider than the leaf."""
        key = name, narrow, widest
        if key in self._pairs:
            return self._pairs[key]
        value, pair = self.values[name], None
        dtype = dtype_in_step(value, widest)
        if narrow.itemsize < dtype.itemsize and narrow != dtype_of(value):
            if isinstance(value, jax.Array):  # Not kept: no tracer may outlive its trace.
                return cast(value, narrow), cast(value, dtype)
            with np.errstate(over="ignore"):  # Stock has warned, or not.
                pair = np.asarray(value).astype(narrow), np.asarray(value).astype(dtype)
        self._pairs[key] = pair
        return pair


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
