"""Find the functions that a patch targets, without importing a module."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .patch import Target

Place = tuple[str, str]
"""The module of a function, and its qualified name there."""


def find(module: str, qualname: str) -> Any:
    """Return the unbound object at ``module:qualname``, or None.

    No ``getattr``: a module's ``__getattr__`` may import or warn.
    """
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


def defining_module(target: Target) -> str | None:
    """Return the first of a target's modules that is loaded and defines it."""
    return next((m for m in target.modules if find(m, target.qualname) is not None), None)


def place_of(target: Target) -> Place:
    """Return where a target is.

    Raises:
      TypeError: it is neither a function nor a method.
    """
    module = defining_module(target) or target.modules[0]  # Another package may come later.
    found = find(module, target.qualname)
    # ``__new__`` is the one static method that is never looked up on an instance.
    binds = not callable(found) or isinstance(found, (classmethod, staticmethod))
    if found is not None and binds and target.name != "__new__":
        raise TypeError(f"{module}:{target.qualname} is neither a function nor a method")
    return module, target.qualname


def unloaded_module(target: Target) -> str | None:
    """Return the outermost module on the path to the target that exists but is not imported."""
    for module in target.modules:
        path = itertools.accumulate(module.split("."), "{}.{}".format)
        name = next((name for name in path if name not in sys.modules), None)
        if name is not None and _exists(name):
            return name
    return None


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # The parent is not a package, or has no spec.
        return False
