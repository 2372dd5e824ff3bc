"""Find and replace the transformations that a function of optax calls: the links of a chain."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from typing import Any, Callable

from .closures import arguments_in, builder_of, class_of_optax, is_of_optax, with_arguments
from .users import as_the_user_sees

_ACCEPTING = "with_extra_args_support"
"""The function of optax around each link that takes no extra arguments."""


def links_of(builder: str, update: Any) -> list[Any]:
    """List the updates of the transformations that a combining function of optax closes over."""
    # Without a call a link: a chain is built in each step of some programs.
    found: list[Any] = []
    todo: list[Any] = []
    for name, value in arguments_in(builder, update):
        todo += [] if name in _LABELS or _is_other_callable(value) else [value]
    for item in todo:
        if is_transformation(item):
            todo.append(item.update)
        elif type(item) in (tuple, list):
            todo += item
        elif isinstance(item, Mapping):
            todo += item.values()
        elif callable(item) and not isinstance(item, type):
            inside = arguments_in(_ACCEPTING, item) if builder_of(item) == _ACCEPTING else []
            todo += map(operator.itemgetter(1), inside)
            found += [] if inside else [item]
    return found


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
        if name not in _LABELS:
            return other(value) if _is_other_callable(value) else map_links(change, value)
        # They may be a tree with a call of its own, such as a model: newer releases call no tree.
        is_called = getattr(masking, "_mask_callable", callable) if name == "mask" else callable
        return other(value) if is_called(value) else value

    return with_arguments(builder, update, argument)


_LABELS = ("mask", "param_labels")
"""Arguments that are a tree of the user's, of any class, or a function that returns one."""


def _is_other_callable(value: Any) -> bool:
    """Check for what stock calls that is no transformation, such as a condition.

    It may be a function, or any object that can be called.
    """
    return callable(value) and not isinstance(value, type) and not is_transformation(value)


def is_transformation(value: Any) -> bool:
    """Check for a transformation: optax asks for no class, so these are its methods."""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def map_links(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a transformation, or a container of some, with other updates."""
    if isinstance(value, Mapping):
        return {name: map_links(change, item) for name, item in value.items()}
    if type(value) in (tuple, list):  # Of transformations, or of their updates.
        every = [(_map_update if callable(item) else map_links)(change, item) for item in value]
        return type(value)(every) if any(map(operator.is_not, every, value)) else value
    if not is_transformation(value):
        return value
    # The sam of optax starts a state in each step.
    init, update = as_the_user_sees(value.init), _map_update(change, value.update)
    return with_parts(value, init=init, update=update)


def with_parts(tx: Any, *, init: Any = None, update: Any = None) -> Any:
    """Return a transformation with another init or update.

    Not of a subclass of the user's, whose own methods would be called by themselves.
    """
    import optax

    is_of_optax = isinstance(tx, optax.GradientTransformation)  # Or a proxy around one.
    kind: Any = class_of_optax(tx.__class__) if is_of_optax else optax.GradientTransformation
    return kind._make((init or tx.init, update or tx.update))


def _map_update(change: Callable[[Any], Any], update: Any) -> Any:
    if builder_of(update) != _ACCEPTING or not is_of_optax(update):
        return change(update)
    return with_arguments(_ACCEPTING, update, lambda _, inside: map_links(change, inside))
