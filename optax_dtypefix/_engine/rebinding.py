"""Rebind every copy of a function.

``from optax import lbfgs`` copies a reference: replacing the function in the module that defines it
leaves the copy stale. The rule: names in modules and classes are rebound, and dicts, lists and
tuples that a module holds directly. Copies elsewhere stay, such as in a ``functools.partial``.
"""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def rebind(owner: Any, name: Any, before: Any, after: Any) -> bool:
    """Set a name in a module or class, or an entry of a dict or list.

    Returns:
      Whether it was set: another thread may have moved the old value.
    """
    names = owner if type(owner) in (dict, list) else vars(owner)
    try:
        if names[name] is not before:
            return False
    except LookupError:
        return False
    if names is owner:
        owner[name] = after
    elif issubclass(type(owner), type):
        type.__setattr__(owner, name, after)  # Not that of a metaclass.
    else:
        setattr(owner, name, after)
    return True


def rebind_aliases(swaps: Iterable[tuple[Any, Any]], *packages: str) -> bool:
    """Rebind every copy of some functions, in one sweep. Return whether there was one.

    Args:
      swaps: pairs of a function to look for and its replacement.
      *packages: the only ones to search, if given; else search all of ``sys.modules``.
    """
    found = False
    for alias in _find_aliases(swaps, packages):
        with contextlib.suppress(Exception):  # One that refuses must not keep the others stale.
            found |= rebind(*alias)
    return found


def stale_names(swaps: Iterable[tuple[Any, Any]], *packages: str) -> list[str]:
    """List the names in packages that hold one of some functions: :func:`rebind_aliases` would."""
    aliases = _find_aliases(swaps, packages)
    return [
        f"{getattr(owner, '__name__', type(owner).__name__)}.{name}" for owner, name, *_ in aliases
    ]


def loaded_modules(*packages: str) -> Iterator[ModuleType]:
    """Yield the loaded modules of some packages, or all, without triggering a lazy module."""
    for name, module in list(sys.modules.items()):
        inside = not packages or name.partition(".")[0] in packages
        if inside and issubclass(type(module), ModuleType):
            yield module


_IN_MODULES: Any = vars(ModuleType)["__dict__"]
_IN_CLASSES: Any = vars(type)["__dict__"]
dict_of = _IN_MODULES.__get__
"""Read the ``vars`` of a module without running a property of its class."""


def _find_aliases(
    swaps: Iterable[tuple[Any, Any]], packages: tuple[str, ...]
) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield the arguments of :func:`rebind` for each copy."""
    new = {id(old): replacement for old, replacement in swaps}
    for owner, names in _names(packages) if new else ():
        in_module = issubclass(type(owner), ModuleType)
        for name, value in names.items():  # Tens of thousands: call nothing for most of them.
            if id(value) in new:
                yield owner, name, value, new[id(value)]
            elif type(value) is tuple and in_module and not new.keys().isdisjoint(map(id, value)):
                after = tuple(new.get(id(entry), entry) for entry in value)
                yield owner, name, value, after


def _names(packages: tuple[str, ...]) -> Iterator[tuple[Any, dict[Any, Any]]]:
    """Yield modules, and the classes, dicts and lists that they hold, with what these hold."""
    seen = set()
    for module in loaded_modules(*packages):
        # The raw __dict__: attribute access could trigger a lazy module or run foreign code.
        names = dict_of(module).copy()
        yield module, names
        for value in names.values():
            kind: Any = type(value)
            if not (kind in (dict, list) or issubclass(kind, type)) or id(value) in seen:
                continue
            seen.add(id(value))
            if kind is list:
                yield value, dict(enumerate(value))
            else:  # On Python 3.9, a class that C code never readied has None.
                held = value if kind is dict else _IN_CLASSES.__get__(value)
                yield value, (held or {}).copy()
