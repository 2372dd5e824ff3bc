"""zoom_linesearch: line searches and L-BFGS keep the dtypes of the params, in any loop.

Stock builds the scalars of its states with ``jnp.asarray(0.0)`` and the like: weakly typed, and
float64 and int64 in 64-bit mode. The first step makes them strong, so a train step is traced twice.
Up to 0.2.4 the first step also changes their dtypes, and the branches of ``cond`` disagree.

Here the initial states have their final dtypes, and stock searches in one dtype.
"""

from __future__ import annotations

import functools
import inspect
import operator
from typing import Any, Callable

import jax
import jax.numpy as jnp

from .._contract.dtypes import (
    PyTree,
    cast,
    dtype_of,
    is_complex,
    is_inexact,
    leaves,
    same_structure,
    tree_map,
    unflatten_like,
)
from .._contract.state import cast_leaf_back
from .._contract.widths import compute_dtype, promoted, real_dtype, statistics_dtype
from .._engine.patch import Stock
from .._tally import Tally
from .door.closures import builder_of, with_arguments
from .door.rebuild import call_of, in_place_of
from .door.users import STEP

_ARRAYS = ("params", "updates", "grad", "safe_grad")
"""Fields of the search's state that are trees like the params; all others are scalars."""


def _strict(_: Any, params: PyTree) -> Any:
    """On 0.2.3 and 0.2.4, start every scalar in the dtype in which the steps compute it."""
    return real_dtype(params)


def _wide(scalar: Any, params: PyTree) -> Any:
    """From 0.2.5 on, where steps keep dtypes, narrow only a float64 that no input has."""
    return statistics_dtype(params) if dtype_of(scalar) == jnp.float64 else dtype_of(scalar)


def _zoom(dtype: Callable[[Any, PyTree], Any], stock: Stock, *args: Any, **kwargs: Any) -> Any:
    init_fn, step_fn, step_cond_fn = stock(*args, **kwargs)
    call, steady_init = call_of(stock, args, kwargs), _steady_init(init_fn, dtype)
    return in_place_of(init_fn, steady_init, call, operator.itemgetter(0)), step_fn, step_cond_fn


zoom_strict, zoom_wide = functools.partial(_zoom, _strict), functools.partial(_zoom, _wide)


def _steady_init(
    init_fn: Callable[..., Any], dtype: Callable[[Any, PyTree], Any]
) -> Callable[..., Any]:
    def steady_init(updates: PyTree, params: PyTree, **init_args: Any) -> Any:
        state = init_fn(updates, params, **init_args)
        scalars = {
            name: _steady(scalar, dtype(scalar, params))
            for name, scalar in state._asdict().items()
            if name not in _ARRAYS
        }
        return state._replace(**scalars)

    return steady_init


def _steady(scalar: Any, dtype: Any) -> Any:
    """Cast a float to this dtype, and a count to int32."""
    if is_inexact(scalar):
        return cast(scalar, dtype)
    is_count = jnp.issubdtype(dtype_of(scalar), jnp.integer)
    return cast(scalar, jnp.int32 if is_count else dtype_of(scalar))


def change(tx: Any, arguments: dict[str, Any], _: Tally, start: Any = _wide) -> Any:
    """Let a line search start with the dtypes of its steps, and search in one dtype.

    Args:
      tx: stock's transformation.
      arguments: of the function that builds it.
      start: chooses the dtypes of the scalars of zoom.
    """
    # Then stock transposes ``value_fn`` with the cotangent 1.0. It has JAX's default float dtype,
    # so the value needs that dtype too.
    transposes = bool(arguments.get("store_grad"))

    def steady(name: str, value: Any) -> Any:
        plain = inspect.unwrap(value) if callable(value) else value  # No function of the user's.
        return _steady_init(plain, start) if name == "init_ls" else plain

    tx = tx._replace(update=with_arguments(builder_of(tx.update), tx.update, steady))

    @functools.wraps(tx.init)
    def init_fn(params: PyTree) -> Any:
        state, dtype = tx.init(params), compute_dtype(params)
        fields = {name: cast(getattr(state, name), dtype) for name in ("learning_rate", "value")}
        if "info" in state._fields:
            fields["info"] = tree_map(lambda leaf: _steady(leaf, dtype), state.info)
        return state._replace(**fields)

    @functools.wraps(tx.update)
    def update_fn(  # noqa: PLR0913  # Stock's signature.
        updates: PyTree,
        state: Any,
        params: PyTree,
        *,
        value: Any,
        grad: PyTree,
        value_fn: Callable[..., Any],
        **extra_args: Any,
    ) -> tuple[PyTree, Any]:
        dtype = compute_dtype((params, updates, value))
        value_dtype = jnp.result_type(float) if transposes else dtype
        updates, state_grad, params, grad = (
            tree_map(functools.partial(_in_dtype, dtype), tree)
            for tree in (updates, state.grad, params, grad)
        )
        given = {"value": cast(value, value_dtype), "grad": grad, **extra_args}
        given["value_fn"] = _giving(value_dtype, value_fn)
        result: tuple[PyTree, Any] = tx.update(
            updates, state._replace(grad=state_grad), params, **given
        )
        return result

    return tx._replace(init=init_fn, update=update_fn)


change_strict = functools.partial(change, start=_strict)


def _in_dtype(dtype: Any, leaf: Any) -> Any:
    """Cast to a real dtype, or to complex numbers with parts of that dtype."""
    return cast(leaf, promoted(dtype, jnp.complex64) if is_complex(leaf) else dtype)


def _giving(dtype: Any, value_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its value in a dtype, and with its signature, which stock reads."""

    @functools.wraps(value_fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return cast(value_fn(*args, **kwargs), dtype)

    return wrapper


def value_and_grad_from_state(stock: Stock, value_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Run stock, also if the value in the state has another dtype than the function."""

    def value_and_grad(params: PyTree, *args: Any, state: Any, **kwargs: Any) -> Any:
        # The value in the state is float32 or wider, and cond needs one dtype.
        dtype = _value_dtype(state)
        function = value_fn if dtype is None else _giving(dtype, value_fn)
        return stock(function)(params, *args, state=state, **kwargs)

    call = call_of(stock, (value_fn,), {})
    return in_place_of(stock(value_fn), value_and_grad, call)  # type: ignore[no-any-return]


def _value_dtype(state: Any) -> Any:
    """Return the dtype of the field ``value`` of the search in ``state``, or None."""

    def is_search(node: Any) -> bool:
        return hasattr(node, "_fields") and {"value", "grad"} <= set(node._fields)

    searches = filter(is_search, jax.tree_util.tree_leaves(state, is_leaf=is_search))
    return next((dtype_of(search.value) for search in searches), None)


def change_lbfgs(tx: Any, _: dict[str, Any], __: Tally) -> Any:
    """Round a gradient as the state does: else rounding would count as a change of it."""

    @functools.wraps(tx.update)
    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        step = STEP.get()
        if step is not None and same_structure(updates, state.updates):
            kept = [step.lent.get(id(leaf), leaf) for leaf in leaves(state.updates)]
            rounded = map(_as_kept, leaves(updates), kept)
            updates = unflatten_like(updates, rounded)
        return tx.update(updates, state, params)  # type: ignore[no-any-return]

    return tx._replace(update=update_fn)


def _as_kept(grad: Any, kept: Any) -> Any:
    if is_complex(kept) > is_complex(grad):
        return grad
    return cast(cast_leaf_back(grad, kept), dtype_of(grad))


def lbfgs(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Build L-BFGS with a default line search that is lifted too.

    Stock built its default when optax was imported, perhaps before its classes were patched.
    """
    signature = inspect.signature(stock)
    if "linesearch" not in signature.bind(*args, **kwargs).arguments:
        default = signature.parameters["linesearch"].default
        kwargs["linesearch"] = type(default)(*default)
    return stock(*args, **kwargs)
