"""Limit the updates of a chain once, where it ends: its links see updates as wide as stock's."""

from __future__ import annotations

import contextvars
import functools
import inspect
import operator
from collections.abc import Mapping
from typing import Any, Callable, get_args

from ..._contract.dtypes import REAL, PyTree, dtypes_in, is_half, kind_of, leaves
from ..._contract.state import cast_back
from ..._contract.updates import INNERMOST, Owed, Step, same_dtypes
from ..._tally import Tally
from .closures import arguments_in, builder_of, with_arguments
from .rebuild import Call, Parts, Promotes, parts_of, rebuild
from .stock_dtypes import start_as_stock


def combine(tx: Any, call: Call, _: Tally) -> Any:
    """Limit what a function builds that combines transformations, such as ``chain``, or ``masked``.

    Where a link makes updates wider than gradients and params, the next link sees them as wide as
    on stock, and its state starts in the dtypes that it has on stock. The last updates are limited.
    """
    builder = builder_of(tx.update)
    inside = [
        (link, parts_of(link))
        for _, value in arguments_in(builder, tx.update)
        if not inspect.isfunction(value)  # A mask of the user's.
        for link in _links_in(value)
    ]
    links = frozenset[object]().union(*(parts.links for _, parts in inside if parts))
    if not links:
        return tx
    promotes = [parts.promotes if parts else "nowhere" for _, parts in inside]
    is_stock = all(_is_stock_in_float32(*link) for link in inside)

    def update_fn(updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any) -> Step:
        around = INNERMOST.get()
        if around and around.to_chain(links, updates):  # A chain around this one bounds them.
            return Step(*tx.update(updates, state, params, **extra_args))
        with Owed(links, (updates, state, params)) as owed:
            new_updates, new_state = tx.update(updates, state, params, **extra_args)
        if not owed.is_empty and same_dtypes(updates, params):
            # Of a state that did not start as here, or where the first step could not be traced.
            new_state = cast_back(new_state, state)
        return Step(new_updates, new_state, *owed.limits(new_updates, updates, params, state))

    def init_fn(params: PyTree) -> PyTree:
        if is_stock:
            all_stock()  # Not in the first step: that is timed, and may be the only one.
        state = tx.init(params)
        wide = {"everywhere"} if _has_one_float(params) else {"everywhere", "in mixed trees"}
        first = next((i for i, where in enumerate(promotes) if where in wide), len(promotes))
        states = list(state.values()) if isinstance(state, Mapping) else state
        if _IN_STEPS_OF_STOCK.get() or not any(map(is_half, leaves(states[first + 1 :]))):
            return state
        as_stocks = tx._replace(init=_in_steps_of_stock(tx.init), update=as_stock())
        return start_as_stock(as_stocks, state, params)

    def with_links(change: Callable[[Parts], Any]) -> Any:
        def changed(link: Any) -> Any:
            parts = parts_of(link)
            return change(parts) if parts else link

        return with_arguments(builder, tx.update, lambda _, value: _map_links(changed, value))

    # Built when a program needs them.
    as_stock = functools.cache(lambda: with_links(lambda parts: parts.as_stock()))
    all_stock = functools.cache(lambda: with_links(lambda parts: parts.stock))

    def in_float32(updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any) -> Any:
        return all_stock()(updates, state, params, **extra_args)

    return rebuild(
        tx,
        call,
        update_fn,
        init_fn,
        links=links,
        as_stock=as_stock,
        in_float32=in_float32 if is_stock else None,
        promotes=max(promotes, key=list(get_args(Promotes)).index),
    )


_IN_STEPS_OF_STOCK = contextvars.ContextVar("in_steps_of_stock", default=False)
"""Whether a chain around this one takes steps of stock: they widen this state too.

Else a chain of chains would trace each of them once more for each level.
"""


def _in_steps_of_stock(init: Callable[[PyTree], PyTree]) -> Callable[[PyTree], PyTree]:
    def init_fn(params: PyTree) -> PyTree:
        token = _IN_STEPS_OF_STOCK.set(True)
        try:
            return init(params)
        finally:
            _IN_STEPS_OF_STOCK.reset(token)

    return init_fn


def _links_in(value: Any) -> list[Any]:
    """List the updates of the transformations that a function of optax closes over."""
    import optax

    if inspect.isfunction(value):
        inner = arguments_in(_ACCEPTING, value) if builder_of(value) == _ACCEPTING else ()
        return [link for _, inside in inner for link in _links_in(inside)] or [value]
    if isinstance(value, optax.GradientTransformation):  # Other objects bound their own updates.
        return _links_in(value.update)
    items = value.values() if isinstance(value, Mapping) else value
    is_container = isinstance(value, Mapping) or type(value) in (tuple, list)
    return [link for item in items for link in _links_in(item)] if is_container else []


_ACCEPTING = "with_extra_args_support"
"""The function of optax around each link that takes no extra arguments."""


def _map_links(change: Callable[[Any], Any], value: Any) -> Any:
    """Replace the updates among what a function of optax closes over; keep all else."""
    import optax

    if inspect.isfunction(value):
        if builder_of(value) != _ACCEPTING:
            return change(value)
        return with_arguments(_ACCEPTING, value, lambda _, inside: _map_links(change, inside))
    if isinstance(value, optax.GradientTransformation):
        update = _map_links(change, value.update)
        return value if update is value.update else value._replace(update=update)
    by_name = isinstance(value, Mapping)
    if not by_name and type(value) not in (tuple, list):
        return value
    items = list(value.values() if by_name else value)
    changed = [_map_links(change, item) for item in items]
    if all(map(operator.is_, changed, items)):
        return value
    return dict(zip(value, changed)) if by_name else type(value)(changed)


def _is_stock_in_float32(update: Any, parts: Parts | None) -> bool:
    """Check for a link of optax's own that runs stock in a float32 problem.

    The next link gets float32 then, if this one does.
    """
    import optax

    if parts is not None:
        return parts.stock is not None
    return getattr(update, "__code__", None) is optax.identity().update.__code__


def _has_one_float(params: PyTree) -> bool:
    return sum(kind_of(dtype) == REAL for dtype in dtypes_in(params)) == 1
