"""Find the functions that a patch targets, without importing a module."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .patch import Target


def owner_of(module: str, qualname: str) -> tuple[Any, str]:
    """The module or class that holds ``module:qualname``, None if it is not there, and the name.

    Looks without ``getattr``: the ``__getattr__`` of a module may import, or warn.
    """
    owner: Any = sys.modules.get(module)
    *path, name = qualname.split(".")
    for part in path:
        owner = vars(owner).get(part) if hasattr(owner, "__dict__") else None
    return owner, name


def find(module: str, qualname: str) -> Any:
    """What stands at ``module:qualname``, unbound, or None. Imports nothing."""
    owner, name = owner_of(module, qualname)
    return vars(owner).get(name) if hasattr(owner, "__dict__") else None


def defining_module(target: Target) -> str | None:
    """The first of a target's modules that is loaded and has it."""
    return next((m for m in target.modules if find(m, target.qualname) is not None), None)


def unloaded_module(target: Target) -> str | None:
    """The outermost module on the way to the target that exists but was not imported yet."""
    for module in target.modules:
        parts = module.split(".")
        for length in range(2, len(parts) + 1):
            name = ".".join(parts[:length])
            if name not in sys.modules:
                if _exists(name):
                    return name
                break
    return None


def unknown_parameters(target: Target) -> list[str]:
    """Parameters of the installed function that the replacement does not understand."""
    module = defining_module(target)
    if target.known_parameters is None or module is None:
        return []
    parameters = inspect.signature(find(module, target.qualname)).parameters
    return [name for name in parameters if name not in target.known_parameters]


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # The parent is no package, or has no spec.
        return False
