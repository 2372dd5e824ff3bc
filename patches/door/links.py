"""Find and replace the transformations that a function of optax calls: the links of a chain."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Mapping
from typing import Any, Callable

from .closures import arguments_in, builder_of, is_of_optax, with_arguments

_ACCEPTING = "with_extra_args_support"
"""The function of optax around each link that takes no extra arguments."""


def links_of(builder: str, update: Any) -> list[Any]:
    """List the updates of the transformations that a combining function of optax closes over.

    A function that is no part of a transformation is a mask of the user's.
    """
    import optax

    # Without a call a link: a chain is built in each step of some programs.
    found: list[Any] = []
    values = list(map(_VALUE, arguments_in(builder, update)))
    todo = list(itertools.filterfalse(inspect.isfunction, values))
    for item in todo:
        if isinstance(item, optax.GradientTransformation):  # Other objects lift for themselves.
            todo.append(item.update)
        elif type(item) in (tuple, list):
            todo += item
        elif isinstance(item, Mapping):
            todo += item.values()
        elif inspect.isfunction(item):
            is_around = item.__qualname__.startswith(_ACCEPTING)
            inside = arguments_in(_ACCEPTING, item) if is_around else []
            todo += map(_VALUE, inside)
            found += [] if inside else [item]
    return found


_VALUE = operator.itemgetter(1)


def with_links(
    builder: str, update: Any, change: Callable[[Any], Any], other: Callable[[Any], Any]
) -> Any:
    """Return the same function of stock, with other links.

    Args:
      builder: the function of optax that defines it.
      update: the function.
      change: is given the update of a link, and returns another.
      other: is given a function that is no part of a transformation, and returns another.
    """

    def argument(_: str, value: Any) -> Any:
        return other(value) if inspect.isfunction(value) else _map_links(change, value)

    return with_arguments(builder, update, argument)


def _map_links(change: Callable[[Any], Any], value: Any) -> Any:
    import optax

    if inspect.isfunction(value):
        if not _accepts(value):
            return change(value)
        return with_arguments(_ACCEPTING, value, lambda _, inside: _map_links(change, inside))
    if isinstance(value, optax.GradientTransformation):
        return value._replace(update=_map_links(change, value.update))
    if isinstance(value, Mapping):
        return {name: _map_links(change, item) for name, item in value.items()}
    if callable(getattr(value, "init", None)) and callable(getattr(value, "update", None)):
        return optax.GradientTransformation(value.init, change(value.update))
    is_container = type(value) in (tuple, list)
    return type(value)(_map_links(change, item) for item in value) if is_container else value


def _accepts(function: Any) -> bool:
    return builder_of(function) == _ACCEPTING and is_of_optax(function)
