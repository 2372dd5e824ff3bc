"""Find and replace the transformations that a function of optax calls: the links of a chain."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Mapping
from typing import Any, Callable

from .closures import arguments_in, builder_of, is_of_optax, with_arguments

_ACCEPTING = "with_extra_args_support"
"""The function of optax around each link that takes no extra arguments."""


def links_of(builder: str, update: Any) -> list[Any]:
    """List the updates of the transformations that a combining function of optax closes over."""
    # Without a call a link: a chain is built in each step of some programs.
    found: list[Any] = []
    values = map(_VALUE, arguments_in(builder, update))
    todo = list(itertools.filterfalse(_is_mask, values))
    for item in todo:
        if _is_transformation(item):
            todo.append(item.update)
        elif type(item) in (tuple, list):
            todo += item
        elif isinstance(item, Mapping):
            todo += item.values()
        elif callable(item) and not isinstance(item, type):
            inside = arguments_in(_ACCEPTING, item) if builder_of(item) == _ACCEPTING else []
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
    masking = sys.modules.get("optax.transforms._masking")

    def argument(name: str, value: Any) -> Any:
        if not _is_mask(value):
            return _map_links(change, value)
        # A mask may be a tree with a call of its own, such as a model: newer releases call no tree.
        is_called = getattr(masking, "_mask_callable", callable) if name == "mask" else callable
        return other(value) if is_called(value) else value

    return with_arguments(builder, update, argument)


def _is_mask(value: Any) -> bool:
    """Check for what stock calls that is no transformation: a mask, labels, a condition.

    It may be a function, or any object that can be called.
    """
    return callable(value) and not isinstance(value, type) and not _is_transformation(value)


def _is_transformation(value: Any) -> bool:
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def _map_links(change: Callable[[Any], Any], value: Any) -> Any:
    import optax

    if isinstance(value, optax.GradientTransformation):
        return value._replace(update=_map_update(change, value.update))
    # A container without a transformation is a mask of the user's, of any class.
    if isinstance(value, Mapping):
        new = {name: _map_links(change, item) for name, item in value.items()}
        return new if any(new[name] is not value[name] for name in new) else value
    if type(value) in (tuple, list):  # Of transformations, or of their updates.
        every = [(_map_update if callable(item) else _map_links)(change, item) for item in value]
        return type(value)(every) if any(map(operator.is_not, every, value)) else value
    if _is_transformation(value):
        return optax.GradientTransformation(value.init, change(value.update))
    return value


def _map_update(change: Callable[[Any], Any], update: Any) -> Any:
    if builder_of(update) != _ACCEPTING or not is_of_optax(update):
        return change(update)
    return with_arguments(_ACCEPTING, update, lambda _, inside: _map_links(change, inside))
