"""Find the functions that a patch targets, without importing a module."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .patch import Target


def owner_of(module: str, qualname: str) -> tuple[Any, str]:
    """Return the module or class that holds ``module:qualname``, and the last part of the name.

    The owner is None if it is not loaded. No ``getattr``: a module's ``__getattr__`` may import or
    warn.
    """
    path, _, name = qualname.rpartition(".")
    return (find(module, path) if path else sys.modules.get(module)), name


def find(module: str, qualname: str) -> Any:
    """Return the unbound object at ``module:qualname``, or None. Imports nothing."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


def defining_module(target: Target) -> str | None:
    """Return the first of a target's modules that is loaded and defines it."""
    return next((m for m in target.modules if find(m, target.qualname) is not None), None)


def unloaded_module(target: Target) -> str | None:
    """Return the outermost module on the path to the target that exists but is not imported."""
    for module in target.modules:
        parts = module.split(".")
        for length in range(2, len(parts) + 1):
            name = ".".join(parts[:length])
            if name not in sys.modules:
                if _exists(name):
                    return name
                break
    return None


def parameters_of(target: Target) -> tuple[str, ...]:
    """List the parameters of the installed function, which must be loaded."""
    stock = find(defining_module(target) or "", target.qualname)
    return tuple(inspect.signature(stock).parameters)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # The parent is not a package, or has no spec.
        return False
