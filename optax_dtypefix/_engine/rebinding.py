"""Rebind every copy of a function.

``from optax import lbfgs`` copies a reference: replacing the function in the module that defines it
leaves the copy stale. The rule: names in modules and classes are rebound. Copies elsewhere stay,
such as in a dict or a ``functools.partial``.
"""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def rebind_aliases(swaps: Iterable[tuple[Any, Any]], *packages: str) -> bool:
    """Rebind every copy of some functions, in one sweep. Return whether there was one.

    Args:
      swaps: pairs of a function to look for and its replacement.
      *packages: the only ones to search, if given; else search all of ``sys.modules``.
    """
    found = False
    for owner, name, before, after in _find_aliases(swaps, packages):
        is_class = issubclass(type(owner), type)
        set_name: Any = type.__setattr__ if is_class else setattr  # Not that of a metaclass.
        with contextlib.suppress(Exception):  # One that refuses must not keep the others stale.
            if vars(owner).get(name) is before:  # Another thread may have moved it.
                set_name(owner, name, after)
                found = True
    return found


def stale_names(swaps: Iterable[tuple[Any, Any]], *packages: str) -> list[str]:
    """List the names in packages that hold one of some functions: :func:`rebind_aliases` would."""
    return [f"{owner.__name__}.{name}" for owner, name, *_ in _find_aliases(swaps, packages)]


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
    """Yield the owner and the name of each copy, the copy, and its replacement."""
    new = {id(old): replacement for old, replacement in swaps}
    for owner, names in _names(packages) if new else ():
        for name, value in names.items():  # Tens of thousands: call nothing for most of them.
            if id(value) in new:
                yield owner, name, value, new[id(value)]


def _names(packages: tuple[str, ...]) -> Iterator[tuple[Any, dict[Any, Any]]]:
    """Yield modules, and the classes that they hold, with their names."""
    seen = set()
    for module in loaded_modules(*packages):
        # The raw __dict__: attribute access could trigger a lazy module or run foreign code.
        names = dict_of(module).copy()
        yield module, names
        for value in names.values():
            if issubclass(type(value), type) and id(value) not in seen:
                seen.add(id(value))
                # On Python 3.9, a class that C code never readied has None.
                yield value, dict(_IN_CLASSES.__get__(value) or {})
