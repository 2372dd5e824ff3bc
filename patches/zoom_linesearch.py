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
    strip_weak_type,
    tree_map,
    unflatten_like,
)
from .._contract.kinds import promote_initial_state
from .._contract.promotion import keep_present_mode, standard_promotion
from .._contract.state import cast_back, cast_leaf_back
from .._contract.updates import cast_updates
from .._contract.widths import compute_dtype, float_dtype, promoted, real_dtype, statistics_dtype
from .._contract.x64 import without_x64
from .._engine.patch import Stock
from .._tally import Tally
from .door.closures import arguments_in, builder_of, is_of_optax, with_arguments
from .door.rebuild import Call, call_of, in_place_of, rebuild

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


def scale_by_linesearch(tx: Any, call: Call, tally: Tally, start: Any = _wide) -> Any:
    """Lift a line search, which stock runs in one dtype, with a state that keeps its dtypes.

    Args:
      tx: stock's transformation.
      call: of the class that returned it.
      tally: of the patch.
      start: chooses the dtypes of the scalars of zoom.
    """
    builder = builder_of(tx.update)
    # Then stock transposes ``value_fn`` with the cotangent 1.0. It has JAX's default float dtype,
    # so the value needs that dtype too.
    transposes = bool(dict(arguments_in(builder, tx.update)).get("store_grad"))

    def steady(name: str, value: Any) -> Any:
        starts = name == "init_ls" and is_of_optax(value)  # Of the default that lbfgs has.
        return _steady_init(value, start) if starts else value

    tx = tx._replace(update=with_arguments(builder, tx.update, steady))

    def init_fn(params: PyTree) -> Any:
        state, dtype = tx.init(params), compute_dtype(params)
        fields = {name: cast(getattr(state, name), dtype) for name in ("learning_rate", "value")}
        # The gradient of an integer param is a float.
        fields["grad"] = tree_map(lambda leaf: cast(leaf, float_dtype(dtype_of(leaf))), state.grad)
        if "info" in state._fields:
            fields["info"] = tree_map(lambda leaf: _steady(leaf, dtype), state.info)
        return strip_weak_type(state._replace(**fields))

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
        trees = [t for t in (params, updates, grad, state.grad) if t is not None]
        if not same_structure(*trees):
            given = {"value": value, "grad": grad, "value_fn": value_fn, **extra_args}
            result: tuple[PyTree, Any] = tx.update(updates, state, params, **given)
            return result  # Stock raises, most often.
        dtype = compute_dtype((params, updates, value))
        value_dtype = jnp.result_type(float) if transposes else dtype
        value, value_fn = cast(value, value_dtype), _giving(value_dtype, value_fn)
        with standard_promotion():
            new_updates, new_state = tx.update(
                _listed(updates, dtype),
                state._replace(grad=None if state.grad is None else _listed(state.grad, dtype)),
                _listed(params, dtype),
                value=value,
                grad=_listed(grad, dtype),
                value_fn=_of_list(value_fn, params),
                **extra_args,
            )
        if new_state.grad is not None:
            new_state = new_state._replace(grad=unflatten_like(params, new_state.grad))
        new_updates = unflatten_like(updates, new_updates)
        return cast_updates(new_updates, updates, params), cast_back(new_state, state)

    return rebuild(tx, call, update_fn, init_fn, also_in_float32=True, tally=tally)


scale_by_linesearch_strict = functools.partial(scale_by_linesearch, start=_strict)


def _listed(tree: PyTree, dtype: Any) -> list[Any]:
    """List the leaves of a tree in a real dtype, or in complex numbers with parts of that dtype.

    Lists, because a user-defined node need not accept other dtypes.
    """
    as_complex = promoted(dtype, jnp.complex64)
    return [cast(leaf, as_complex if is_complex(leaf) else dtype) for leaf in leaves(tree)]


def _of_list(function: Callable[..., Any], like: PyTree) -> Callable[..., Any]:
    """Turn a function of a tree into a function of its list, with the same signature.

    The function sees the dtypes of ``like``, and complex numbers where stock computes them.
    """

    def as_given(leaf: Any, given: Any) -> Any:
        return leaf if is_complex(leaf) > is_complex(given) else cast(leaf, dtype_of(given))

    @functools.wraps(function)
    def wrapper(flat: list[Any], *args: Any, **kwargs: Any) -> Any:
        tree = unflatten_like(like, map(as_given, flat, leaves(like)))
        return function(tree, *args, **kwargs)

    return wrapper


def _giving(dtype: Any, value_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its value in a dtype, and with its signature, which stock reads."""
    in_mode = keep_present_mode(value_fn)

    @functools.wraps(value_fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return cast(in_mode(*args, **kwargs), dtype)

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


_TREES = ("params", "updates", "diff_params_memory", "diff_updates_memory")
"""Fields of the state that are trees like the params; the memories have one axis more."""


def scale_by_lbfgs(tx: Any, call: Call, tally: Tally) -> Any:
    """Compute directions in one dtype; 64-bit mode alone does not make the weights float64."""

    def init_fn(params: PyTree) -> Any:
        # In 64-bit mode stock's weights are float64.
        state = without_x64(tx.init, leaves(params))
        fields = {name: unflatten_like(params, getattr(state, name)) for name in _TREES}
        fields["weights_memory"] = cast(state.weights_memory, compute_dtype(params))
        return promote_initial_state(update_fn, state._replace(**fields), params)

    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        trees = {name: getattr(state, name) for name in _TREES}
        if params is None or not same_structure(updates, params, *trees.values()):
            return tx.update(updates, state, params)  # type: ignore[no-any-return]  # It raises.
        dtype = compute_dtype((params, updates))
        lists = {name: _listed(tree, dtype) for name, tree in trees.items()}
        # With float64 gradients the weights are computed in float64, and kept in float32.
        weights = cast(state.weights_memory, promoted(dtype_of(state.weights_memory), dtype))
        rounded = tree_map(_as_kept, updates, state.updates)
        with standard_promotion():
            new_updates, new_state = tx.update(
                _listed(rounded, dtype),
                state._replace(**lists, weights_memory=weights),
                _listed(params, dtype),
            )
        new_trees = {name: unflatten_like(params, getattr(new_state, name)) for name in _TREES}
        new_updates = unflatten_like(updates, new_updates)
        new_state = cast_back(new_state._replace(**new_trees), state)
        return cast_updates(new_updates, updates, params), new_state

    return rebuild(tx, call, update_fn, init_fn, also_in_float32=True, tally=tally)


def _as_kept(grad: Any, kept: Any) -> Any:
    """Round a gradient as the state does: else rounding would count as a change of it."""
    return grad if is_complex(kept) > is_complex(grad) else cast_leaf_back(grad, kept)


def lbfgs(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Build L-BFGS with a default line search that is lifted too.

    Stock built its default when optax was imported, perhaps before its classes were patched.
    """
    signature = inspect.signature(stock)
    if "linesearch" not in signature.bind(*args, **kwargs).arguments:
        default = signature.parameters["linesearch"].default
        kwargs["linesearch"] = type(default)(*default)
    return stock(*args, **kwargs)
