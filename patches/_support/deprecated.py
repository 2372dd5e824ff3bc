"""Serve deprecated names, whose functions stock keeps in a dict that no sweep finds."""

from __future__ import annotations

import sys
from typing import Any

from ..._engine.patch import Stock
from ..._errors import warn_the_user


def deprecated_attribute(stock: Stock, module: str, name: str) -> Any:
    """Return a deprecated attribute of a module, with its warning for the line that reads it.

    Stock counts frames to find that line, and would blame ours, which Python does not show.
    """
    message, found = getattr(sys.modules[module], "_deprecations", {}).get(name, ("", None))
    if found is None:
        return stock(name)  # Raises AttributeError.
    warn_the_user(DeprecationWarning(message))
    return found
