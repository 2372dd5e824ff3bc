"""Accept gradients by the keyword that stock has for them."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

from ..._engine.patch import Stock


def accept_keyword_of(stock: Stock, update_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``update_fn``, whose first parameter is ``updates``, accept the keyword of stock.

    The update function of adafactor calls its gradients ``grads``; all others say ``updates``.
    """
    name = next(iter(inspect.signature(stock).parameters), "updates")
    if name == "updates":
        return update_fn

    @functools.wraps(update_fn)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        if name in kwargs:
            kwargs["updates"] = kwargs.pop(name)
        return update_fn(*args, **kwargs)

    return renamed
