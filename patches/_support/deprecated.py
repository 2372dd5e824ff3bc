"""Deprecated names: stock keeps the functions behind them in a dict, where no sweep finds them."""

from __future__ import annotations

import sys
from typing import Any, Callable

from ..._errors import warn_the_user


def deprecated_attribute(stock: Callable[..., Any], module: str, name: str) -> Any:
    """What a module's own ``__getattr__`` gives, with its warning for the line that asks.

    Stock counts frames to find that line, and would take ours for it, of which Python shows none.
    """
    message, found = getattr(sys.modules[module], "_deprecations", {}).get(name, ("", None))
    if found is None:
        return stock(name)  # Raises AttributeError.
    warn_the_user(DeprecationWarning(message))
    return found
