"""learning_rate: a strongly typed learning rate or weight decay does not change dtypes.

A Python number is weakly typed: 0.1 times a bfloat16 leaf is bfloat16. A float32 array or a NumPy
scalar is strong: the product is float32, or float64 under x64. Here the product is computed in the
dtype of the rate, at most float32 for leaves that are not wider, and rounded to the dtype of the
leaf.

``sm3`` and ``optimistic_adam`` do arithmetic with their learning rate when they are built, or
refuse a schedule. Here both accept one. In ``sm3`` the schedule scales the output of
``scale_by_sm3``, with the state of ``scale_by_schedule``. ``optimistic_adam`` is built from stock
in each step with the rate of that step, so its state is stock's.
"""

from __future__ import annotations

from typing import Any, Callable

import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import PyTree, array_dtypes, cast, is_inexact, is_weak
from ..._contract.signatures import positional_names
from ..._contract.updates import requested_dtypes
from ..._contract.widths import compute_dtype
from ..._contract.x64 import is_x64
from ..._engine.patch import Stock
from .._support.arguments import arguments_of
from .._support.keep_dtypes import KeepDtypes
from .._support.rebuild import call_of, rebuild, rebuild_but_for_floats
from .._support.stock_dtypes import promotes_half

_FLOAT32 = jnp.dtype(jnp.float32)
_KEEP_DTYPES = KeepDtypes()


def fit_rate(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Fit the first argument of stock's function to the leaves."""
    name, *_ = positional_names(stock)
    rate = args[0] if args else kwargs.get(name)
    if not callable(rate) and getattr(rate, "dtype", None) != jnp.float64:
        return _KEEP_DTYPES(stock, *args, **kwargs)
    promotes = callable(rate) or promotes_half(rate)
    options = {"promotes": "everywhere"} if promotes else {}
    return fit_in_each_step(stock, args, kwargs, stock(*args, **kwargs), lambda _: rate, **options)


def scale(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Let stock multiply floats by a weakly typed number, which keeps their dtypes."""
    return _fit_unless_weak(stock, args, kwargs, "step_size", reads_params=False)


def add_decayed_weights(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Let stock add floats of the same dtypes, multiplied by a weakly typed number."""
    return _fit_unless_weak(stock, args, kwargs, "weight_decay", reads_params=True)


def _fit_unless_weak(
    stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, *, reads_params: bool
) -> Any:
    rate = args[0] if args else kwargs.get(name)
    if callable(rate) or not is_weak(rate):
        return fit_rate(stock, *args, **kwargs)
    tx, call = stock(*args, **kwargs), call_of(stock, args, kwargs)

    def update_fn(updates: PyTree, *args: Any, **kwargs: Any) -> Any:
        only_float32 = set(array_dtypes(updates) or ()) == {_FLOAT32}
        if reads_params or not only_float32 or type(rate) not in (int, float):
            return _KEEP_DTYPES.wrap(tx, call).update(updates, *args, **kwargs)
        # Weakly typed. To multiply by an array is faster than to cast each product.
        return stock(np.float32(rate)).update(updates, *args, **kwargs)

    return rebuild_but_for_floats(tx, call, update_fn, reads_params=reads_params)


def fit_in_each_step(
    stock: Stock,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tx: Any,
    rate_of: Callable[[Any], Any],
    **options: Any,
) -> Any:
    """Rebuild ``tx`` so that stock builds it in each step, with the rate for these leaves.

    The first argument of stock's function is the rate; ``options`` are those of :func:`rebuild`.
    """
    arguments, call = arguments_of(stock, args, kwargs), call_of(stock, args, kwargs)
    name = next(iter(arguments))

    def update_fn(updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any) -> Any:
        rate = _no_wider_than((updates, params), rate_of(state))
        return stock(**{**arguments, name: rate}).update(updates, state, params, **extra_args)

    requested = requested_dtypes(stock, args, kwargs)
    return _KEEP_DTYPES.wrap(rebuild(tx, call, update_fn, **options), call, requested)


def _no_wider_than(tree: PyTree, rate: Any) -> Any:
    """Cast a float64 rate, or the value of a schedule, to float32 where no leaf is float64.

    In 32-bit mode a float64 of NumPy is as good as a float32.
    """
    if callable(rate):
        return lambda count: _no_wider_than(tree, rate(count))
    if isinstance(rate, float) and rate == 0:
        return float(rate)  # NumPy's float64 is one. Stock skips such a decay, and 0 * inf is nan.
    if is_weak(rate) or not (is_inexact(rate) and is_x64()):
        return rate
    widest = compute_dtype(tree)
    wider = jnp.finfo(rate.dtype).bits > jnp.finfo(widest).bits
    return cast(rate, widest) if wider and not jnp.iscomplexobj(rate) else rate
