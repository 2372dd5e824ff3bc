"""Find the optimizers that were built before the patches were applied: they stay stock.

``scale_by_adam(...)`` returns functions that are defined inside it, and a later patch of
``scale_by_adam`` does not reach these. Their names tell which function built them.
"""

from __future__ import annotations

import functools
import gc
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from .rebinding import dict_of, loaded_modules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_CONTAINERS = (tuple, list, dict, functools.partial, MethodType)
_OURS = __name__.partition(".")[0]


def find_optimizers(package: str, builders: Collection[str]) -> list[set[Any]]:
    """Return, for each optimizer of a program, the functions in it that some builders returned.

    An optimizer is a named tuple of the package that holds functions, as ``GradientTransformation``
    does. Those inside another one, and those that the package itself made, do not count.

    Args:
      package: its name.
      builders: names of functions and classes of the package.
    """
    gc.collect()  # What nobody can reach is in nobody's way.
    own = [tx for tx in _held_by_package(package) if _is_optimizer(tx, package)]
    own_parts = {id(part) for tx in own for part in parts_of(tx, package)}
    inside = own_parts.copy()
    found: dict[int, set[Any]] = {}
    for tx in [value for value in gc.get_objects() if _is_optimizer(value, package)]:
        parts = parts_of(tx, package)
        built = (part for part in parts if _is_built(part, package, builders))
        found[id(tx)] = {part for part in built if id(part) not in own_parts}
        inside.update(map(id, parts[1:]))
    return [functions for i, functions in found.items() if functions and i not in inside]


def parts_of(tx: Any, package: str) -> list[Any]:
    """List a transformation and what it holds: in closures, containers and objects of optax."""
    parts: dict[int, Any] = {}
    pending = [tx]
    while pending:
        value = pending.pop()
        kind = type(value)
        if id(value) in parts or issubclass(kind, type):
            continue
        parts[id(value)] = value
        if kind is FunctionType:
            pending += gc.get_referents(*(value.__closure__ or ()))
        elif issubclass(kind, _CONTAINERS) or _is_of(package, kind) or _is_of(_OURS, kind):
            pending += gc.get_referents(value)
    return [*parts.values()]


def builder_of(function: Any) -> str:
    """Return the first part of the qualified name: the function or class that defines it."""
    return str(function.__qualname__).partition(".")[0]


def _is_optimizer(value: Any, package: str) -> bool:
    kind = type(value)  # Of a hundred thousand objects: first what is true of few.
    if not issubclass(kind, tuple) or kind is tuple or not _is_of(package, *kind.__mro__):
        return False
    return any(type(part) in (FunctionType, MethodType) for part in value)


def _is_built(function: Any, package: str, builders: Collection[str]) -> bool:
    kind = type(function)
    if kind is FunctionType:
        is_part = "<locals>" in function.__qualname__
    else:  # A method that was bound before; a later one has our wrapper.
        is_part = kind is MethodType and type(function.__func__) is FunctionType
    return is_part and builder_of(function) in builders and _is_of(package, function)


def _is_of(package: str, *definitions: Any) -> bool:
    return any(str(d.__module__).partition(".")[0] == package for d in definitions)


def _held_by_package(package: str) -> Iterator[Any]:
    """Yield the values and default arguments in the modules of a package."""
    for value in (
        value for module in loaded_modules(package) for value in dict_of(module).values()
    ):
        function = getattr(value, "_self_stock", value) if _is_of(_OURS, type(value)) else value
        if type(function) is FunctionType:
            yield from function.__defaults__ or ()
            yield from (function.__kwdefaults__ or {}).values()
        else:
            yield value
