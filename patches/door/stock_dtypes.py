"""Find out, abstractly, which dtypes stock gives a state: there it loses no digits (C0).

Nothing is computed. Stock may raise for these dtypes; then it has nothing to be as wide as.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax.numpy as jnp

from ..._contract.dtypes import (
    REAL,
    PyTree,
    all_dtypes,
    cast,
    dtype_of,
    is_array,
    is_half,
    is_real,
    kind_of,
    leaves,
    unflatten_like,
)
from ..._contract.state import ids_of_fields
from ..._contract.trace import trace, trace_state
from ..._contract.updates import same_dtypes, subtrees_like

_FLOAT16, _FLOAT32 = jnp.dtype(jnp.float16), jnp.dtype(jnp.float32)


def known_schedule(_: Any) -> Any:
    """Stand for a schedule of the user, which does not run: those of optax return a float32."""
    return jnp.zeros((), jnp.float32)


def promotes_half(*arguments: Any) -> bool:
    """Check for hyperparameters that are arrays and promote half precision, as ``0.9`` does not.

    Stock's moments are then wide from the first step on, and lose no digits.
    """
    return any(
        not getattr(x, "weak_type", False) and is_array(x) and is_real(x) and not is_half(x)
        for x in arguments
        if hasattr(x, "dtype")
    )


def start_as_stock(tx: Any, state: PyTree, params: PyTree) -> PyTree:
    """Start in float32 what stock starts in float32, or makes so in its first two steps.

    Args:
      tx: the transformation, as stock builds it.
      state: a new state of that transformation, narrow where a param is.
      params: arrays or ``jax.ShapeDtypeStruct``.
    """
    if not any(map(is_half, leaves(state))):
        return state

    def take_two_steps(params: PyTree, **extra_args: Any) -> PyTree:
        state = tx.init(params)
        for _ in range(2):  # A scalar may become float32 first, and then the moments.
            _, state = tx.update(params, state, params, **extra_args)
        return state

    wide = (
        trace(take_two_steps, params)
        or trace(
            take_two_steps, params, value=known_schedule(None)
        )  # A link needs that of the loss.
        or trace(tx.init, params)
    )
    return _widen(state, wide)


def _widen(state: PyTree, wide: list[Any] | None, most: list[Any] | None = None) -> PyTree:
    """Cast the real leaves of a state to the dtypes of wider ones, at most float32, or ``most``."""
    flat = leaves(state)
    if wide is None or len(flat) != len(wide):
        return state
    limits = most or [_FLOAT32] * len(flat)
    dtypes = [min(pair, key=_width) for pair in zip(all_dtypes(wide), limits)]
    constants = ids_of_fields(state, _CONSTANTS)

    def widened(leaf: Any, dtype: Any) -> Any:
        narrow = id(leaf) not in constants and _is_narrower(dtype_of(leaf), dtype)
        return cast(leaf, dtype) if narrow else leaf

    return unflatten_like(state, map(widened, flat, dtypes))


@functools.cache
def _width(dtype: Any) -> int:
    """Return the size of a real dtype; 0 for any other."""
    return dtype.itemsize if kind_of(dtype) == REAL else 0


def _is_narrower(dtype: Any, other: Any) -> bool:
    return 0 < _width(dtype) < _width(other)


# Fields that no step changes: copies of the first params, and rounded hyperparameters, which stand
# for what the user gave.
_CONSTANTS = frozenset({"params0", "init_params", "x0", "init_particles", "hyperparams"})


class Range:
    """Widen what is in float16 where a step of stock does, because a gradient is wider.

    float16 has no squares of small gradients, and no large ones: the updates would be far off. In
    bfloat16 a moment is as right as any, and stays.
    """

    def __init__(self, update: Callable[..., Any]) -> None:
        self._update = update
        self._after: dict[Any, list[Any] | None] = {}  # By the dtypes before a step of stock.

    def __call__(
        self, updates: PyTree, state: PyTree, params: PyTree, extra_args: dict[str, Any]
    ) -> PyTree:
        """Return the state before a step; the values of its leaves do not change."""
        before = all_dtypes(state)
        if _FLOAT16 not in before:
            return state
        like = params if params is not None else next(iter(subtrees_like(state, updates)), updates)
        if same_dtypes(updates, like):
            return state
        key = (*before, None, *all_dtypes((updates, params)))
        if key not in self._after:
            given = {n: known_schedule if callable(v) else v for n, v in extra_args.items()}
            self._after[key] = trace_state(self._update, updates, state, params, **given)
        most = [_FLOAT32 if dtype == _FLOAT16 else dtype for dtype in before]
        return _widen(state, self._after[key], most)


class Growth:
    """Widen what is narrower than a new state for the same params, where a step of stock does.

    As in a state from a bfloat16 checkpoint, continued in float32. A leaf that ``init`` makes
    narrow too, such as one with a ``mu_dtype``, stays.
    """

    def __init__(self, init: Callable[..., Any], update: Callable[..., Any]) -> None:
        self._init, self._update = init, update
        self._at_home: set[Any] = set()  # Dtypes of states that are as wide as ``init`` makes them.

    def __call__(
        self, updates: PyTree, state: PyTree, params: PyTree, extra_args: dict[str, Any]
    ) -> PyTree:
        """Return the state before a step; the values of its leaves do not change."""
        like = updates if params is None else params
        given, dtypes = all_dtypes(state), all_dtypes(like)
        least = min(filter(None, map(_width, dtypes)), default=0)
        if set(range(1, least)).isdisjoint(map(_width, given)):
            return state
        key = (*given, None, *dtypes)
        if key in self._at_home:
            return state
        new = all_dtypes(trace(self._init, like))
        if len(new) == len(given) and any(map(_is_narrower, given, new)):
            after = trace_state(self._update, updates, state, params, **extra_args)
            return _widen(state, after, new)
        self._at_home.add(key)
        return state
