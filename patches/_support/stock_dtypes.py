"""Find out, abstractly, where stock keeps a state in float32: there it loses no digits (C0).

Nothing is computed. Stock may raise for these dtypes; then it has nothing to be as wide as.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp

from ..._contract.dtypes import (
    REAL,
    PyTree,
    cast,
    dtype_of,
    dtypes_in,
    is_array,
    is_half,
    is_real,
    is_weak,
    kind_of,
    leaves,
    unflatten_like,
)
from ..._contract.kinds import after_a_step
from ..._contract.promotion import standard_promotion
from ..._contract.updates import kept_like, same_dtypes
from ..._tally import paused


def without_user_code(arguments: dict[str, Any]) -> dict[str, Any]:
    """Replace the schedules and masks among the arguments of an optimizer: the user's do not run.

    A schedule returns a float32 array, as those of optax do.
    """
    found = {name: _float32 if callable(value) else value for name, value in arguments.items()}
    return {**found, "mask": None} if "mask" in found else found


def _float32(_: Any) -> Any:
    return jnp.zeros((), jnp.float32)


def promotes_half(argument: Any) -> bool:
    """Check whether a hyperparameter is an array that promotes half precision, as ``0.9`` is not.

    Stock's moments are then wide from the first step on, and lose no digits.
    """
    if not is_array(argument):
        return False
    return not is_weak(argument) and is_real(argument) and not is_half(argument)


def start_as_stock(tx: Any, state: PyTree, params: PyTree) -> PyTree:
    """Start in float32 what stock starts in float32, or makes so in its first two steps.

    Args:
      tx: the transformation, as stock builds it.
      state: a new state of that transformation, narrow where a param is.
      params: arrays or ``jax.ShapeDtypeStruct``.
    """
    if not any(map(is_half, leaves(state))):
        return state
    with standard_promotion():
        for tree in (params, leaves(params)):  # A node of the user's may take arrays alone.
            try:
                with paused():
                    stock = jax.eval_shape(tx.init, tree)
            except Exception:
                continue
            for _ in range(2):  # A scalar may become float32 first, and then the moments.
                after = after_a_step(tx.update, stock, tree)
                stock = stock if after is None else _as_wide_as(stock, after)
            return _as_wide_as(state, leaves(stock))
    return state


def as_stock_promotes(
    update: Callable[..., Any], updates: PyTree, state: PyTree, params: PyTree
) -> PyTree:
    """Cast the half-precision leaves of a state to the dtypes that stock gives them in this step.

    Stock promotes some of them where a gradient is wider than its param.
    """
    like = params if params is not None else next(iter(kept_like(state, updates)), updates)
    if same_dtypes(updates, like):
        return state
    try:
        with paused():
            after = jax.eval_shape(lambda *a: leaves(update(*a)[1]), updates, state, params)
    except Exception:
        return state
    return _as_wide_as(state, after)


def _as_wide_as(state: PyTree, stock: list[Any]) -> PyTree:
    """Cast half-precision leaves to float32 where stock's leaf is as wide, or wider."""
    flat = leaves(state)
    if len(flat) != len(stock):
        return state

    def widened(leaf: Any, other: Any) -> Any:
        wide = is_half(leaf) and kind_of(other.dtype) == REAL and not is_half(other)
        return cast(leaf, jnp.float32) if wide else leaf

    return unflatten_like(state, map(widened, flat, stock))


class Growth:
    """Widen what is narrower than a new state for the same params, where a step of stock does.

    As in a state from a bfloat16 checkpoint, continued in float32. A leaf that ``init`` makes
    narrow too, such as one with a ``mu_dtype``, stays.
    """

    def __init__(self, init: Callable[..., Any], update: Callable[..., Any]) -> None:
        self._init, self._update = init, update
        self._at_home: set[Any] = set()  # Dtypes of states that ``init`` gives.

    def __call__(
        self, updates: PyTree, state: PyTree, params: PyTree, extra_args: dict[str, Any]
    ) -> PyTree:
        """Return the state before a step; the values of its leaves do not change."""
        like = updates if params is None else params
        widths = [_width(dtype) for dtype in dtypes_in(like)]
        least = min(filter(None, widths), default=0)
        flat = leaves(state)
        given = tuple(map(dtype_of, flat))
        if not any(0 < _width(dtype) < least for dtype in given):
            return state
        key = (*given, *map(dtype_of, leaves(like)))
        if key in self._at_home:
            return state
        try:
            with paused(), standard_promotion():
                new = list(map(dtype_of, leaves(jax.eval_shape(self._init, like))))
                if len(new) != len(flat) or not any(map(_is_narrower, given, new)):
                    self._at_home.add(key)
                    return state
                step = functools.partial(self._update, **extra_args)
                after = jax.eval_shape(lambda *a: leaves(step(*a)[1]), updates, state, params)
        except Exception:  # The step itself raises too, if it does on stock.
            return state
        if len(after) != len(flat):
            return state
        wider = map(_narrower_of, new, (leaf.dtype for leaf in after))
        pairs = zip(flat, given, wider)
        return unflatten_like(
            state, [cast(x, now) if _is_narrower(was, now) else x for x, was, now in pairs]
        )


def _width(dtype: Any) -> int:
    return dtype.itemsize if kind_of(dtype) == REAL else 0


def _is_narrower(dtype: Any, other: Any) -> bool:
    return 0 < _width(dtype) < _width(other)


def _narrower_of(dtype: Any, other: Any) -> Any:
    return dtype if _width(dtype) <= _width(other) else other
