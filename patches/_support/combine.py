"""Bound the updates of a chain once, where it ends: its links see updates as wide as stock's."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any, Callable, get_args

from ..._contract.dtypes import REAL, PyTree, dtypes_in, is_half, kind_of, leaves
from ..._contract.state import cast_back
from ..._contract.updates import INNERMOST, Owed, Step, same_dtypes
from ..._engine.patch import Stock
from .rebuild import Parts, Promotes, call_of, parts_of, rebuild
from .stock_dtypes import start_as_stock


def combine(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function that combines transformations, such as ``chain`` or ``masked``.

    Where a link makes updates wider than gradients and params, the next link sees them as wide as
    on stock, and its state starts in the dtypes that it has on stock. The last updates are bounded.
    """
    tx = stock(*args, **kwargs)
    promotes: list[Promotes] = []
    are_stocks: list[bool] = []

    def note(link: Any) -> Any:
        parts = parts_of(link)
        promotes.append(parts.promotes if parts else "nowhere")
        are_stocks.append(_is_stock_in_float32(link, parts))
        return _leave_casts(link, parts)

    noting_args, noting_kwargs = _map_links(note, args), _map_links(note, kwargs)
    if noting_args is args and noting_kwargs is kwargs:
        return tx
    update_links = stock(*noting_args, **noting_kwargs).update

    def update_fn(updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any) -> Step:
        with Owed() as owed:
            new_updates, new_state = update_links(updates, state, params, **extra_args)
        if owed and same_dtypes(updates, params):
            # Of a state that did not start as here, or where the first step could not be traced.
            new_state = cast_back(new_state, state)
        return Step(new_updates, new_state, *owed.bound(new_updates, updates, params, state))

    def init_fn(params: PyTree) -> PyTree:
        state = tx.init(params)
        wide = {"everywhere"} if _has_one_float(params) else {"everywhere", "in mixed trees"}
        first = next((i for i, where in enumerate(promotes) if where in wide), len(promotes))
        states = list(state.values()) if isinstance(state, Mapping) else state
        if not any(map(is_half, leaves(states[first + 1 :]))):
            return state
        return start_as_stock(tx._replace(update=as_stock()), state, params)

    def with_links(change: Callable[[Any, Parts | None], Any]) -> Any:
        changed = functools.partial(_map_links, lambda link: change(link, parts_of(link)))
        return stock(*changed(args), **changed(kwargs)).update

    @functools.cache  # Few programs need it.
    def as_stock() -> Any:
        return with_links(lambda x, parts: x._replace(update=parts.as_stock()) if parts else x)

    in_float32 = None
    if all(are_stocks):
        in_float32 = with_links(lambda x, parts: x._replace(update=parts.stock) if parts else x)
    return rebuild(
        tx,
        call_of(stock, args, kwargs),
        update_fn,
        init_fn,
        as_stock=as_stock,
        in_float32=in_float32,
        promotes=max(promotes, key=list(get_args(Promotes)).index),
    )


def _map_links(change: Callable[[Any], Any], value: Any) -> Any:
    """Replace the transformations among the arguments of a function; keep its other arguments."""
    import optax

    by_name = isinstance(value, Mapping)
    if not by_name and type(value) not in (tuple, list):
        return value
    items = list(value.values() if by_name else value)
    changed = [
        change(item) if isinstance(item, optax.GradientTransformation) else _map_links(change, item)
        for item in items
    ]
    if all(map(operator.is_, changed, items)):
        return value
    return dict(zip(value, changed)) if by_name else type(value)(changed)


def _leave_casts(tx: Any, parts: Parts | None) -> Any:
    """Return a link that notes its casts for the innermost chain in place of making them."""
    link = parts and parts.link
    if not link:
        return tx

    def update(*args: Any, **kwargs: Any) -> tuple[PyTree, PyTree]:
        step = link(*args, **kwargs)
        INNERMOST.get().add(step)
        return step.updates, step.state

    return tx._replace(update=update)


def _is_stock_in_float32(tx: Any, parts: Parts | None) -> bool:
    """Check for a link of optax's own that runs stock in a float32 problem.

    The next link gets float32 then, if this one does.
    """
    import optax

    if parts is not None:
        return parts.stock is not None
    return getattr(tx.update, "__code__", None) is optax.identity().update.__code__


def _has_one_float(params: PyTree) -> bool:
    return sum(kind_of(dtype) == REAL for dtype in dtypes_in(params)) == 1
