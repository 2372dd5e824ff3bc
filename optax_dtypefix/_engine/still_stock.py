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
    CellType,
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
from .wrapper import PatchedFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_NO_HOLDERS = (FrameType, GeneratorType, CoroutineType, MethodType)
"""What runs, and bound methods, which count as built by the stock method."""

_CONTAINERS = (dict, list, tuple, set, frozenset, functools.partial, CellType)


class StillStock:
    """What a program built with, or holds of, the functions of one package before their patch."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._searched: dict[int, Any] = {}  # Holds the functions, so that no id is used again.
        self._builders: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._held: dict[int, dict[int, str]] = {}  # Kinds of holders, by the ids of both.

    def skip(self, stock: Iterable[Any]) -> None:
        """Never search for what these functions built: they were patched in time."""
        self._searched.update((id(function), function) for function in stock)

    def search(self, stock: Sequence[Any], ours: Iterable[Any], *, again: bool) -> list[str]:
        """Name the functions that built something, with the number of calls, and what is held.

        Each function is searched for once: what a program builds after ``revert`` is stock on
        purpose. What the package itself built and holds is left out.

        Args:
          stock: the functions, each of which is patched now.
          ours: the objects by which we hold them.
          again: whether to name again what an earlier search found, as far as it still exists.
        """
        # Tuples, because gc.get_referrers(*new) then copies nothing that refers to them, too.
        new = tuple(function for function in stock if id(function) not in self._searched)
        old = tuple(f for f in stock if id(f) in self._held) if again else ()
        if not (new or old):
            return []
        self.skip(new)
        gc.collect()  # What nobody can reach is in nobody's way.
        own = {id(value) for value in self._own(tuple(ours))}
        own |= {id(new), id(old), id(stock), id(self._searched)}
        self._find_built(new, own)
        self._find_holders(new + old, own)
        live = Counter(id(_source_of(value)) for value in self._builders)
        calls = Counter({_name_of(f): live[id(f)] + _calls(_code_of(f), live) for f in new + old})
        counted = [f"{name} ({count})" for name, count in (+calls).most_common()]
        return counted + self.held(new + old)

    def _find_built(self, functions: tuple[Any, ...], own: set[int]) -> None:
        builders = {id(code): _name_of(f) for f in functions for code in _nested(_code_of(f))}
        # The bound methods of a patched class hold the stock method.
        builders.update((id(function), _name_of(function)) for function in functions)
        built = [value for value in _made_of(builders) if id(value) not in own]
        self._builders.update((value, builders[id(_source_of(value))]) for value in built)

    def _find_holders(self, functions: tuple[Any, ...], own: set[int]) -> None:
        holders = [o for o in gc.get_referrers(*functions) if type(o) not in _NO_HOLDERS]
        holders = [holder for holder in holders if id(holder) not in own]
        for function in functions:
            found = {
                id(holder): type(holder).__name__
                for holder in holders
                if any(value is function for value in gc.get_referents(holder))
            }
            # Later, what patched functions made holds the stock function too: look for no more.
            known = self._held.get(id(function), found)
            self._held[id(function)] = {i: kind for i, kind in found.items() if i in known}

    def _own(self, ours: tuple[Any, ...]) -> Iterator[Any]:
        """Yield our objects, and what the package holds by its names.

        The search goes into containers, wrappers of ours and functions of the package. All else
        ends it: a logger, a cache or an import hook may lead to all that a program has.
        """

        def is_inside(value: Any) -> bool:
            kind = type(value)
            if kind is not FunctionType:
                return kind is PatchedFunction or issubclass(kind, _CONTAINERS)
            module = str(value.__module__)  # That of the function inside, if it is decorated.
            return module == self._package or module.startswith(f"{self._package}.")

        modules = [*map(dict_of, loaded_modules(self._package))]
        names = [value for module in modules for value in module.values()]
        wrappers = [value for value in ours if type(value) is PatchedFunction]
        yield from (*modules, *ours, *_held_by(*names, *wrappers, into=is_inside))

    def held(self, stock: Iterable[Any]) -> list[str]:
        """Say in what kinds of objects some functions are still held, such as ``adam in cell``."""
        kinds = ((f, sorted({*self._held.get(id(f), {}).values()})) for f in stock)
        return [f"{_name_of(function)} in {kind}" for function, found in kinds for kind in found]

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


def _held_by(*roots: Any, into: Callable[[Any], bool] = lambda _: True) -> Iterator[Any]:
    """Yield what these objects hold, directly or not, without classes, modules and globals.

    ``__builtins__`` are globals too: IPython's ``get_ipython`` there leads to all that a user has.

    Args:
      *roots: the objects.
      into: says whether to go on with what a value holds.
    """
    seen: dict[int, Any] = {id(names): names for names in map(dict_of, loaded_modules())}
    pending = list(roots)
    while pending:
        value = pending.pop()
        kind = type(value)
        if id(value) in seen or issubclass(kind, (CodeType, FrameType, ModuleType, type)):
            continue
        seen[id(value)] = value  # Holds it, so that no id is used again.
        yield value
        if not into(value):
            continue
        if kind is FunctionType:  # Not its globals.
            pending += (value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value))
        else:
            pending += gc.get_referents(value)
