"""Find what stays stock after a late patch: what stock functions built before, and what holds them.

``scale_by_adam(...)`` returns functions that are defined inside it, and a later patch of
``scale_by_adam`` does not reach these. Their code tells which function built them.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections import Counter
from types import (
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any

from .rebinding import dict_of, loaded_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NO_HOLDERS = (FrameType, GeneratorType, CoroutineType, MethodType)
"""What runs, and bound methods, which count as built by the stock method."""


class StillStock:
    """What a program built with, or holds of, the functions of one package before their patch."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._searched: dict[int, Any] = {}  # Holds the functions, so that no id is used again.
        self._builders: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._held: dict[int, list[str]] = {}  # By the id of a function.

    def skip(self, stock: Iterable[Any]) -> None:
        """Never search for what these functions built: they were patched in time."""
        self._searched.update((id(function), function) for function in stock)

    def search(self, stock: Iterable[Any], ours: Any) -> list[str]:
        """Name the functions that built something, with the number of calls, and what is held.

        Each function is searched for once: what a program builds after ``revert`` is stock on
        purpose. What the package itself built and holds is left out.

        Args:
          stock: the functions, each of which is patched now.
          ours: the object by which we hold them.
        """
        # A tuple, because gc.get_referrers(*new) then copies nothing that refers to them, too.
        new = tuple(function for function in stock if id(function) not in self._searched)
        self.skip(new)
        if not new:
            return []
        builders = {id(code): _name_of(f) for f in new for code in _nested(_code_of(f))}
        # The bound methods of a patched class hold the stock method.
        builders.update((id(function), _name_of(function)) for function in new)
        gc.collect()  # What nobody can reach is in nobody's way.
        holders = [o for o in gc.get_referrers(*new) if type(o) not in _NO_HOLDERS]
        built = _made_of(builders)
        own = {id(o) for o in _held_by(ours, *map(dict_of, loaded_modules(self._package)))}
        own |= {id(new), id(stock), id(self._searched)}
        built = [value for value in built if id(value) not in own]
        self._builders.update((value, builders[id(_source_of(value))]) for value in built)
        live = Counter(id(_source_of(value)) for value in built)
        calls = Counter({_name_of(f): live[id(f)] + _calls(_code_of(f), live) for f in new})
        for function in new:
            kinds = {
                type(holder).__name__
                for holder in holders
                if id(holder) not in own and any(o is function for o in gc.get_referents(holder))
            }
            self._held[id(function)] = [f"{_name_of(function)} in {k}" for k in sorted(kinds)]
        return [f"{name} ({count})" for name, count in (+calls).most_common()] + self.held(new)

    def held(self, stock: Iterable[Any]) -> list[str]:
        """Say in what kinds of objects some functions are still held, such as ``adam in cell``."""
        return [name for function in stock for name in self._held.get(id(function), ())]

    def built_before(self, value: Any) -> list[str]:
        """Return the names of the functions that built parts of a value before the patch."""
        parts = [part for part in _held_by(value) if type(part) in (FunctionType, MethodType)]
        return sorted({self._builders[part] for part in parts if part in self._builders})


def _made_of(sources: dict[int, str]) -> list[Any]:
    """Return all live functions with one of these codes, and bound methods of these functions."""
    return [
        value
        for value in gc.get_objects()  # A million: call nothing for most of them.
        if ((kind := type(value)) is FunctionType and id(value.__code__) in sources)
        or (kind is MethodType and id(value.__func__) in sources)
    ]


def _source_of(value: Any) -> Any:
    return value.__func__ if type(value) is MethodType else value.__code__


def _inside(function: Any) -> Any:
    """Return the function inside wrappers and partials, which has the name and the code."""
    while type(function) is functools.partial or hasattr(function, "__wrapped__"):
        is_partial = type(function) is functools.partial
        function = function.func if is_partial else function.__wrapped__
    return function


def _name_of(function: Any) -> str:
    inside = _inside(function)
    return str(getattr(inside, "__qualname__", type(inside).__qualname__))


def _code_of(function: Any) -> CodeType | None:
    return getattr(_inside(function), "__code__", None)


def _nested(code: CodeType | None) -> Iterator[CodeType]:
    """Yield the code of the functions that are defined inside, at any depth."""
    for inner in _children(code):
        yield inner
        yield from _nested(inner)


def _children(code: CodeType | None) -> list[CodeType]:
    inside = code.co_consts if code is not None else ()
    # Lambdas and comprehensions are arguments and loops, not what a function returns.
    return [c for c in inside if type(c) is CodeType and not c.co_name.startswith("<")]


def _calls(code: CodeType | None, live: Counter[int]) -> int:
    """Count the calls that made the outermost live functions.

    A call defines each of them once. Those inside may be made again in each step.
    """
    return max((live[id(c)] or _calls(c, live) for c in _children(code)), default=0)


def _held_by(*roots: Any) -> Iterator[Any]:
    """Yield what these objects hold, directly or not, without classes, modules and globals."""
    seen: dict[int, Any] = {}
    pending = list(roots)
    while pending:
        value = pending.pop()
        kind = type(value)
        if id(value) in seen or issubclass(kind, (CodeType, FrameType, ModuleType, type)):
            continue
        seen[id(value)] = value  # Holds it, so that no id is used again.
        yield value
        if kind is FunctionType:  # Not its globals.
            pending += (value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value))
        else:
            pending += gc.get_referents(value)
