"""Optimizers that refuse a schedule as learning rate, or compute with the rate when built."""

from __future__ import annotations

from typing import Any

from ..._contract.dtypes import PyTree
from ..._engine.patch import Stock
from .._support.arguments import arguments_of
from .._support.rebuild import call_of, rebuild


def optimistic_adam(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Accept a schedule, too: build stock in each step, with the rate of that step."""
    arguments = arguments_of(stock, args, kwargs)
    schedule = arguments["learning_rate"]
    if not callable(schedule):
        return stock(*args, **kwargs)

    def build(rate: Any) -> Any:
        return stock(**{**arguments, "learning_rate": rate})

    def update_fn(updates: PyTree, state: Any, *args: Any, **kwargs: Any) -> Any:
        return build(schedule(state[0].count)).update(updates, state, *args, **kwargs)

    return rebuild(build(0.0), call_of(stock, args, kwargs), update_fn, also_in_float32=True)


def sm3(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace ``sm3`` by one that also accepts a schedule."""
    import optax

    arguments = arguments_of(stock, args, kwargs)
    schedule = arguments["learning_rate"]
    if not callable(schedule):
        return stock(*args, **kwargs)
    return optax.chain(
        optax.scale_by_sm3(arguments["momentum"]),
        optax.scale_by_schedule(lambda count: -schedule(count)),
    )
