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

from typing import Any

from .._contract.dtypes import PyTree
from .._engine.patch import Stock
from .door.arguments import arguments_of
from .door.rebuild import call_of, rebuild


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
