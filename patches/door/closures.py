"""Read and change what stock's functions close over: the arguments of the call that built them."""

from __future__ import annotations

import functools
import types
from typing import Any, Callable


def builder_of(function: Any) -> str:
    """Return the name of the function that defines a local one: ``scale_by_adam``."""
    return str(getattr(function, "__qualname__", "")).partition(".")[0]


def arguments_in(builder: str, *functions: Any) -> list[tuple[str, Any]]:
    """List what functions of optax close over, and what the helpers of their builder do.

    Args:
      builder: the name of the function of optax that defines them.
      *functions: of a transformation.
    """
    found = []
    for function in filter(is_of_optax, functions):
        for name, cell in _cells(function):
            value = cell.cell_contents
            is_helper = type(value) is types.FunctionType and _is_helper(builder, value)
            found += arguments_in(builder, value) if is_helper else [(name, value)]
    return found


def with_arguments(
    builder: str, function: Any, change: Callable[[str, Any], Any]
) -> Callable[..., Any]:
    """Return the same function of stock, as if it were built with other arguments."""
    changed = {}
    for name, cell in _cells(function):
        value = cell.cell_contents
        is_helper = type(value) is types.FunctionType and _is_helper(builder, value)
        new = with_arguments(builder, value, change) if is_helper else change(name, value)
        if new is not value:
            changed[name] = types.CellType(new)
    if not changed:
        return function  # type: ignore[no-any-return]
    code, cells = function.__code__, zip(function.__code__.co_freevars, function.__closure__)
    closure = tuple(changed.get(name, cell) for name, cell in cells)
    scope, defaults = function.__globals__, function.__defaults__
    copied = types.FunctionType(code, scope, function.__name__, defaults, closure)
    copied.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copied, function, updated=())


def is_users_function(argument: Any) -> bool:
    """Check for a function that may be the user's, such as a schedule; optax's defaults are not."""
    if not callable(argument) or isinstance(argument, type):  # ``jnp.float32`` is a type.
        return False
    name = str(getattr(argument, "__qualname__", "<locals>"))
    return not (is_of_optax(argument) and "<locals>" not in name)


def is_of_optax(function: Any) -> bool:
    """Check for a function that optax defines; one of the user's may have its names.

    Its type counts: a decorator, as by wrapt, shows the attributes of what it wraps.
    """
    if type(function) not in (types.FunctionType, types.MethodType):
        return False
    scope = getattr(function, "__globals__", {})
    return str(scope.get("__name__")).partition(".")[0] == "optax"


@functools.lru_cache(maxsize=64)
def class_of_optax(cls: Any) -> Any:
    """Return the class of optax that a class of transformations is, or extends.

    A subclass of the user's may have an update of its own, which is not the field of that name.
    """
    own = (kind for kind in cls.__mro__ if kind.__module__.partition(".")[0] == "optax")
    return next(own, cls)


def _cells(function: Any) -> list[tuple[str, Any]]:
    """List the cells that are set, without the function itself: a helper may call itself."""
    cells = []
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or ()):
        try:
            inside = cell.cell_contents
        except ValueError:
            continue
        if inside is not function:
            cells.append((name, cell))
    return cells


def _is_helper(builder: str, value: Any) -> bool:
    """Check for a local function of a builder; a function of the user's may have its name."""
    is_inside = str(value.__qualname__).startswith(f"{builder}.<locals>.")
    return is_inside and is_of_optax(value)
