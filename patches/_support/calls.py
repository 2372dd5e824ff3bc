"""Accept the arguments of an update as stock names and orders them."""

from __future__ import annotations

from typing import Any, Callable

from ..._contract.signatures import positional_names
from ..._engine.patch import Stock


def accept_signature_of(stock: Stock, update_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``update_fn(updates, state, params, **extra_args)`` accept the signature of stock.

    adafactor calls its gradients ``grads``, and an estimator takes its objective by position.
    """
    names = positional_names(stock)
    if len(names) <= 3 and names[:1] == ["updates"]:
        return update_fn

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= len(names):  # Else update_fn raises.
            kwargs.update(zip(names[3:], args[3:]))
            args = args[:3]
        if names and names[0] in kwargs:
            kwargs["updates"] = kwargs.pop(names[0])
        return update_fn(*args, **kwargs)

    return wrapper
