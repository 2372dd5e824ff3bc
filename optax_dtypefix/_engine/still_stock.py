"""Find what stays stock after a late patch: what stock functions built before, and what holds them.

``scale_by_adam(...)`` returns functions that are defined inside it, and a later patch of
``scale_by_adam`` does not reach these. Their code tells which function built them.
"""

from __future__ import annotations

import functools
import gc
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
from .wrapper import Builder, PatchedFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .patch_points import PatchPoints

_RUNNING = (FrameType, GeneratorType, CoroutineType)
_INSIDE = (dict, list, tuple, set, frozenset, functools.partial, CellType, PatchedFunction)


def find_still_stock(points: PatchPoints, *, again: bool) -> list[str]:
    """Name the functions that built something which is alive, and say what holds a function.

    Each function is searched for once: what a program builds after ``revert`` is stock on purpose.
    What the package itself built and holds is left out.

    Args:
      points: the functions that are patched.
      again: whether to name again what an earlier search found, as far as it still exists.
    """
    wrappers: list[PatchedFunction | Builder] = [*points.wrappers(points.order)]
    wrappers += points.find_builders()
    searched = [wrapper for wrapper in wrappers if again or wrapper._self_held is None]
    if searched:
        gc.collect()  # What nobody can reach is in nobody's way.
        rebound = {id(before) for before, _ in points.replaced}
        _search(searched, {*rebound, *map(id, _held_by_package(points.package, searched))})
    names = {name_of(wrapper) for wrapper in searched if wrapper._self_built}
    return [*sorted(names), *(text for wrapper in searched for text in list_holders(wrapper))]


def list_holders(wrapper: PatchedFunction | Builder) -> list[str]:
    """Say in what kinds of objects a stock function is still held, such as ``adam in cell``."""
    kinds = sorted({*(wrapper._self_held or {}).values()})
    return [f"{name_of(wrapper)} in {kind}" for kind in kinds]


def _search(wrappers: list[PatchedFunction | Builder], own: set[int]) -> None:
    """Record at each wrapper what its stock function built, and what holds the function."""
    stock = {id(w._self_stock): w for w in wrappers if type(w) is PatchedFunction}
    new = [wrapper for wrapper in wrappers if wrapper._self_held is None]
    codes = [(code, wrapper) for wrapper in new for code in _nested(_inside(wrapper))]
    builders = {id(code): wrapper for code, wrapper in codes}
    builders.update((id(wrapper._self_stock), wrapper) for wrapper in new)
    held: dict[int, dict[int, str]] = {i: {} for i in stock}
    # A tuple with a name: from Python 3.13 on, it is a referrer, too.
    sources = (*(w._self_stock for w in wrappers), *(code for code, _ in codes))
    own = {*own, id(sources)}
    for value in (value for value in gc.get_referrers(*sources) if id(value) not in own):
        if type(value) in (FunctionType, MethodType):
            source = value.__code__ if type(value) is FunctionType else value.__func__
            if id(source) in builders:
                builders[id(source)]._self_built.add(value)
        elif type(value) not in _RUNNING:
            for i in stock.keys() & map(id, gc.get_referents(value)):
                held[i][id(value)] = type(value).__name__
    for i, wrapper in stock.items():
        # Later, what patched functions made holds the stock function too: look for no more.
        known = held[i] if wrapper._self_held is None else wrapper._self_held
        wrapper._self_held = {holder: kind for holder, kind in held[i].items() if holder in known}
    for builder in wrappers:
        builder._self_held = builder._self_held or {}


def _inside(function: Any) -> Any:
    """Return the function inside wrappers and partials, which has the name and the code."""
    while type(function) is functools.partial or hasattr(function, "__wrapped__"):
        is_partial = type(function) is functools.partial
        function = function.func if is_partial else function.__wrapped__
    return function


def name_of(function: Any) -> str:
    """Return the qualified name of the function inside wrappers and partials."""
    inside = _inside(function)
    return str(getattr(inside, "__qualname__", type(inside).__qualname__))


def _nested(function: Any) -> Iterator[CodeType]:
    """Yield the code of the functions that are defined inside a function or code, at any depth."""
    for inner in getattr(getattr(function, "__code__", function), "co_consts", ()):
        # Lambdas and comprehensions are arguments and loops, not what a function returns.
        if type(inner) is CodeType and not inner.co_name.startswith("<"):
            yield inner
            yield from _nested(inner)


def _held_by_package(package: str, wrappers: list[PatchedFunction | Builder]) -> Iterator[Any]:
    """Yield what the package holds by its names, and what our wrappers hold.

    The search goes into containers, our wrappers and functions of the package. All else ends it: a
    logger, a cache or an import hook may lead to all that a program has.
    """

    def is_inside(value: Any) -> bool:
        if type(value) is not FunctionType:
            return issubclass(type(value), _INSIDE)
        # The module of the function inside, if it is decorated.
        return str(value.__module__).partition(".")[0] == package

    modules = [*map(dict_of, loaded_modules(package))]
    names = (value for module in modules for value in module.values())
    yield from (*modules, *held_by(*names, *wrappers, into=is_inside))


def held_by(*roots: Any, into: Callable[[Any], bool] = lambda _: True) -> Iterator[Any]:
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
        if kind is FunctionType:  # Not its globals.
            held = [value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value)]
        else:
            held = gc.get_referents(value)
        pending += held if into(value) else ()
