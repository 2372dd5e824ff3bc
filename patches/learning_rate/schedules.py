"""Optimizers that refuse a schedule as learning rate, or compute with the rate when built."""

from __future__ import annotations

from typing import Any

from ..._engine.patch import Stock
from .._support.arguments import arguments_of
from . import fit_in_each_step, fit_rate


def optimistic_adam(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Accept a schedule, too."""
    arguments = arguments_of(stock, args, kwargs)
    schedule = arguments["learning_rate"]
    if not callable(schedule):
        return fit_rate(stock, *args, **kwargs)
    tx = stock(**{**arguments, "learning_rate": 0.0})

    def rate_of(state: Any) -> Any:
        return schedule(state[0].count)

    return fit_in_each_step(stock, args, kwargs, tx, rate_of, also_in_float32=True)


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
