"""Find out, abstractly, where stock keeps a state in float32: there it loses no digits (C0).

Nothing is computed. Stock may raise for these dtypes; then it has nothing to be as wide as.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    REAL,
    PyTree,
    cast,
    dtype_of,
    dtypes_in,
    is_array,
    is_half,
    is_half_dtype,
    is_real,
    is_weak,
    kind_of,
    leaves,
    tree_map,
    unflatten_like,
)
from ..._contract.kinds import after_a_step
from ..._contract.promotion import standard_promotion
from ..._contract.updates import kept_like, same_dtypes
from ..._engine.patch import Stock
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


class StockPromotion:
    """Cast the half-precision leaves of a state to the dtypes that stock gives them in a step.

    Stock promotes some of them where a gradient is wider than its param.
    """

    def __init__(self, stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._stock, self._arguments = stock, (args, kwargs)

    def __call__(
        self, updates: PyTree, state: PyTree, params: PyTree, extra_args: dict[str, Any]
    ) -> PyTree:
        """Return the state; ``extra_args`` are those of the update."""
        if not _may_promote(updates, state, params):
            return state
        extra_args = {n: _float32 if callable(v) else v for n, v in extra_args.items()}
        flat, structure = jax.tree_util.tree_flatten((*self._arguments, extra_args))
        arrays = list(filter(is_array, flat))
        rest = [None if is_array(leaf) else (type(leaf), leaf) for leaf in flat]
        # Any other object may hold arrays, so it is not kept.
        kept = all(leaf is None or isinstance(leaf[1], _PLAIN) for leaf in rest)
        step = (_step_of if kept else _step_of.__wrapped__)(self._stock, structure, tuple(rest))
        try:
            with paused():
                return _as_wide_as(state, jax.eval_shape(step, arrays, updates, state, params))
        except Exception:
            return state


_PLAIN = (bool, int, float, complex, str, type, np.dtype)


@functools.lru_cache(maxsize=256)
def _step_of(stock: Stock, structure: Any, rest: tuple[Any, ...]) -> Callable[..., Any]:
    """Return a step that gives the leaves of its state, for arguments that differ in arrays only.

    JAX keeps what it traced, by structures, dtypes and modes, until ``jax.clear_caches()``.
    """

    def step(arrays: list[Any], *given: PyTree) -> list[Any]:
        arrays_left = iter(arrays)
        flat = [next(arrays_left) if leaf is None else leaf[1] for leaf in rest]
        args, kwargs, extra_args = structure.unflatten(flat)
        return leaves(stock(*args, **kwargs).update(*given, **extra_args)[1])

    return jax.jit(step)


def _may_promote(updates: PyTree, state: PyTree, params: PyTree) -> bool:
    """Check whether a step of stock may promote a half-precision leaf of this state."""
    like = params if params is not None else next(iter(kept_like(state, updates)), updates)
    if same_dtypes(updates, like):
        return False
    nodes = jax.tree_util.tree_leaves(state, is_leaf=_has_copies)
    kept = [_without_copies(node) if _has_copies(node) else node for node in nodes]
    return any(map(is_half_dtype, dtypes_in(kept)))


# Fields that hold the params of the first step, which no step changes.
_COPIES = frozenset({"params0", "init_params", "x0", "init_particles"})


def _has_copies(node: Any) -> bool:
    return not _COPIES.isdisjoint(getattr(node, "_fields", ()))


def _without_copies(state: Any) -> Any:
    return [getattr(state, name) for name in state._fields if name not in _COPIES]


class Recorded:
    """What functions of the user return to stock, to be returned again while stock is traced."""

    def __init__(self) -> None:
        self._results: list[Any] = []

    def note(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, which notes what it returns."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self._results.append(result)
            return result

        return noted

    def repeat(self) -> Callable[..., Any]:
        """Return a function that returns numbers of the same dtypes, in the order of the calls."""
        results = iter(self._results)
        return lambda *_, **__: tree_map(_number_like, next(results))


def _number_like(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    # The leaf itself may be a tracer that is out of use.
    return leaf.dtype.type().item() if is_weak(leaf) else jnp.zeros(leaf.shape, leaf.dtype)


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
