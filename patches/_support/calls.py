"""Calls by name: an update takes its gradients by the name that stock has for them."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable


def accept_keyword_of(
    stock: Callable[..., Any], update_fn: Callable[..., Any]
) -> Callable[..., Any]:
    """``update_fn``, which has ``updates`` first, for calls that name them as stock does.

    adafactor's part of optax calls them ``grads``, all others ``updates``.
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
