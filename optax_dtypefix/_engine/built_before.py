"""Find the optimizers that were built before the patches were applied: they stay stock.

``scale_by_adam(...)`` returns functions that are defined inside it, and a later patch of
``scale_by_adam`` does not reach these. Their names tell which function built them.
"""

from __future__ import annotations

import functools
import gc
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from .rebinding import dict_of, loaded_modules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_CONTAINERS = (tuple, list, dict, functools.partial, MethodType)
_OURS = __name__.partition(".")[0]


def find_optimizers(package: str, builders: Collection[str]) -> list[WeakSet[Any]]:
    """Return, for each optimizer of a program, the functions in it that some builders returned.

    An optimizer is a named tuple of the package that holds functions, as ``GradientTransformation``
    does. Those inside another one, and those that the package itself made, do not count.

    Args:
      package: its name.
      builders: names of functions and classes of the package.
    """
    gc.collect()  # What nobody can reach is in nobody's way.
    own = {id(part) for part in parts_of([*map(dict_of, loaded_modules(package))], package)}
    found, inside = {}, set(own)
    kinds = {kind for kind in _subclasses(tuple) if _is_of(package, *kind.__mro__)}
    # Not by ``gc.get_objects``: who holds all objects breaks what other threads build, such as
    # ``tuple(generator)``, which raises SystemError: https://github.com/python/cpython/issues/39117
    for tx in [value for value in gc.get_referrers(*kinds) if _is_optimizer(value, kinds)]:
        parts = [part for part in parts_of(tx, package) if id(part) not in own]
        found[id(tx)] = WeakSet(part for part in parts if _is_built(part, package, builders))
        inside.update(map(id, parts[1:]))
    return [functions for i, functions in found.items() if functions and i not in inside]


def describe(optimizers: Iterable[WeakSet[Any]]) -> str:
    """Count those optimizers that are still there, and name their builders; empty if none is."""
    names = [{*map(builder_of, functions)} for functions in optimizers if functions]
    count = f"{len(names)} optimizer{'s' if len(names) > 1 else ''}"
    return f"{count} ({', '.join(sorted(set().union(*names)))})" if names else ""


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
            pending += value.__defaults__ or ()
            pending += (value.__kwdefaults__ or {}).values()
        elif issubclass(kind, _CONTAINERS) or _is_of(package, kind) or _is_of(_OURS, kind):
            pending += gc.get_referents(value)
    return [*parts.values()]


def builder_of(function: Any) -> str:
    """Return the first part of the qualified name: the function or class that defines it."""
    return str(function.__qualname__).partition(".")[0]


def _subclasses(kind: type) -> Iterator[type]:
    direct: list[type] = type.__subclasses__(kind)
    for subclass in direct:
        yield subclass
        yield from _subclasses(subclass)


def _is_optimizer(value: Any, kinds: Collection[type]) -> bool:
    return type(value) in kinds and any(type(p) in (FunctionType, MethodType) for p in value)


def _is_built(function: Any, package: str, builders: Collection[str]) -> bool:
    """Return whether a builder defines a function inside, or a method that was bound before."""
    if type(function) not in (FunctionType, MethodType) or "." not in function.__qualname__:
        return False
    if type(getattr(function, "__func__", function)) is not FunctionType:  # Our wrapper.
        return False
    return builder_of(function) in builders and _is_of(package, function)


def _is_of(package: str, *definitions: Any) -> bool:
    return any(str(d.__module__).partition(".")[0] == package for d in definitions)
