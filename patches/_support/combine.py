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
from ..._tally import NO_PATCH
from .rebuild import Promotes, call_of, link_of, parts_of, pickled_as_call, rebuild
from .stock_dtypes import start_as_stock


def combine(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function that combines transformations, such as ``chain`` or ``masked``.

    Where a link makes updates wider than gradients and params, the next link sees them as wide as
    on stock, and its state starts in the dtypes that it has on stock. The last updates are bounded.
    """
    tx = stock(*args, **kwargs)
    links: list[Any] = []
    _map_links(links.append, (args, kwargs))
    parts = list(map(parts_of, links))
    if not any(part and part.link for part in parts):
        return tx
    promotes = [part.promotes if part else "nowhere" for part in parts]

    def update_of(change: Callable[[Any], Any]) -> Callable[..., Any]:
        changed_args, changed_kwargs = _map_links(change, (args, kwargs))
        update: Callable[..., Any] = stock(*changed_args, **changed_kwargs).update
        return update

    update_links = update_of(_leave_casts)

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
        with Owed():
            return start_as_stock(tx._replace(update=update_links), state, params)

    with NO_PATCH:  # The links count their casts.
        return rebuild(
            tx,
            call_of(stock, *_map_links(pickled_as_call, (args, kwargs))),
            update_fn,
            init_fn,
            in_float32=update_of(_use_stock) if all(map(_same_in_float32, links)) else None,
            promotes=max(promotes, key=list(get_args(Promotes)).index),
        )


def _map_links(function: Callable[[Any], Any], value: Any) -> Any:
    """Replace the transformations among the arguments of a function; keep its other arguments."""
    import optax

    if isinstance(value, optax.GradientTransformation):
        return function(value)
    change = functools.partial(_map_links, function)
    if type(value) in (tuple, list):
        return type(value)(map(change, value))
    if isinstance(value, Mapping):
        pairs = {key: change(item) for key, item in value.items()}
        return value if all(map(operator.is_, pairs.values(), value.values())) else pairs
    return value


def _leave_casts(tx: Any) -> Any:
    """Return a link that notes its casts for the innermost chain in place of making them."""
    link = link_of(tx)
    if link is tx.update:
        return tx

    def update(*args: Any, **kwargs: Any) -> tuple[PyTree, PyTree]:
        step = link(*args, **kwargs)
        INNERMOST.get().add(step)
        return step.updates, step.state

    return tx._replace(update=update)


def _same_in_float32(tx: Any) -> bool:
    """Check that a link is optax's own: the next one gets float32 if this one does."""
    import optax

    parts = parts_of(tx)
    if parts is not None:
        return parts.stock is not None
    return getattr(tx.update, "__code__", None) is optax.identity().update.__code__


def _use_stock(tx: Any) -> Any:
    parts = parts_of(tx)
    return tx if parts is None else tx._replace(update=parts.stock)


def _has_one_float(params: PyTree) -> bool:
    return sum(kind_of(dtype) == REAL for dtype in dtypes_in(params)) == 1
