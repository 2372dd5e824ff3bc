"""Replace functions in the objects that hold them beside the names of modules.

Users keep functions of optax in registries, lists, closures, default arguments, attributes and
``functools.partial``. The garbage collector finds these objects, and they are changed in place. An
object that compares by value stays as it is, with the containers in its attributes, for it may be a
key of a dict: a tuple, for example, or a frozen dataclass.
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from types import CellType, CoroutineType, FrameType, FunctionType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from .._logging import LOGGER
from .attributes import (
    attributes,
    compares_by_identity,
    is_plain_dict,
    replace_in_attributes,
    replace_in_class,
    replace_in_dict,
    set_partial,
    user_of,
    vars_of,
)
from .rebinding import dict_of, loaded_modules
from .stale import RECORDS, held_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    _T = TypeVar("_T")

_LEFT_OUT = (FrameType, GeneratorType, CoroutineType, MethodType)
"""What runs, and bound methods, which :class:`~.stale.BuiltBefore` reports."""


def replace(
    functions: Sequence[Any], replacements: Sequence[Any], keep: Iterable[Any]
) -> dict[int, list[str]]:
    """Replace functions in all objects that hold them.

    Args:
      functions: the functions to look for.
      replacements: for each function, what to put in its place.
      keep: these objects, those in ``RECORDS``, and what both hold, do not change.

    Returns:
      By the id of a function, the names of the objects that still hold it.
    """
    ours = {id(held) for held in held_by(*RECORDS, *keep, into_functions=False)}
    ours |= {id(functions), id(replacements)}
    found = gc.get_referrers(*functions)
    holders = [o for o in found if id(o) not in ours and type(o) not in _LEFT_OUT]
    found.clear()  # Or it is what holds the holders.
    return _Search(functions, replacements).run(holders)


class _Search:
    """One search for what holds some functions."""

    def __init__(self, functions: Sequence[Any], replacements: Sequence[Any]) -> None:
        self._new = dict(zip(map(id, functions), replacements))
        self._old = dict(zip(map(id, replacements), functions))
        self._owners: dict[int, list[Any]] = {}  # By the id of a holder: what holds it.
        self._keys: dict[int, dict[int, Any]] = {}  # By the id of a dict: the keys by value.
        modules = map(dict_of, loaded_modules())
        self._modules = {id(names): names.get("__name__") for names in modules}

    def run(self, holders: list[Any]) -> dict[int, list[str]]:
        """Replace what can be replaced. Return the names of what cannot, by id of the function."""
        for holder in holders:
            _try(self._replace, holder)
        left = [holder for holder in holders if any(self._olds_in(holder))]
        self._find_owners(left, left, holders)
        for holder in left:
            _try(self._replace_by_owner, holder)
        # What ``jax.jit`` returns calls the function in a closure, which follows, or in a PjitInfo.
        infos = [holder for holder in left if type(holder).__name__ == "PjitInfo"]
        jitted = {id(old) for info in infos for old in self._olds_in(info)}
        kept: dict[int, dict[str, None]] = {}
        for holder in left:
            kind = self._kind_of(holder)
            for old in self._olds_in(holder):
                if kind != "PjitFunction" or id(old) in jitted:
                    name = _try(self._name_of, holder)
                    if name:
                        kept.setdefault(id(old), {})[f"{name} ({kind})"] = None
        return {old: list(names) for old, names in kept.items()}

    def _olds_in(self, holder: Any) -> Iterator[Any]:
        return (held for held in gc.get_referents(holder) if id(held) in self._new)

    def _find_owners(self, holders: list[Any], *ours: list[Any], depth: int = 3) -> None:
        """Find what holds these, and the variables that lead there: it takes as long each time."""
        known = self._modules.keys() | self._owners.keys()
        holders = [holder for holder in holders if id(holder) not in known]
        if not holders or not depth:
            return
        wanted = {id(holder) for holder in holders}
        skip = {id(holders), *map(id, ours), *map(id, self._owners.values())}
        nested = []
        for owner in _referrers(holders):
            held = wanted.intersection(map(id, gc.get_referents(owner)))
            if not held or id(owner) in skip or type(owner) in _LEFT_OUT:
                continue
            for holder in held:
                self._owners.setdefault(holder, []).append(owner)
            if type(owner) in (dict, list, tuple) or id(vars_of(owner)) in wanted:
                nested.append(owner)
        self._find_owners(nested, holders, *ours, depth=depth - 1)

    def _replace(self, holder: Any) -> None:
        """Replace functions in a holder that shows what it holds, unless it compares by value."""
        kind = type(holder)
        if kind is CellType:
            holder.cell_contents = self._new[id(holder.cell_contents)]
        elif kind is functools.partial:
            func = self._new.get(id(holder.func), holder.func)
            set_partial(holder, func, holder.args)
        elif not issubclass(kind, (dict, list, set, deque, tuple, FunctionType)):
            self._replace_attributes(holder)

    def _replace_attributes(self, user: Any) -> None:
        if not compares_by_identity(user):
            return
        replace_in_attributes(user, self._new)
        if any(self._olds_in(user)):  # Out of reach, as in ``lru_cache``: that one is called.
            replace_in_attributes(user, self._old)

    def _replace_by_owner(self, holder: Any) -> None:
        """Replace functions in a container, and in what only the owner can replace."""
        owners = self._owners.get(id(holder), [])
        kind = type(holder)
        if kind is tuple:
            for owner in owners:
                if type(owner) is FunctionType and holder is owner.__defaults__:
                    owner.__defaults__ = self._in_tuple(holder)
                elif type(owner) is functools.partial and owner.args is holder:
                    set_partial(owner, owner.func, self._in_tuple(holder))
        elif kind is staticmethod:
            new = {id(holder): staticmethod(self._new[id(holder.__func__)])}
            for owner in owners:
                if type(owner) is dict and self._class_of(owner) is not None:
                    replace_in_class(self._class_of(owner), owner, new)
        elif id(holder) not in self._modules and not self._is_in_a_value(holder):
            self._replace_in_container(holder)

    def _replace_in_container(self, holder: Any) -> None:
        if type(holder) in (list, deque):
            for i, value in enumerate(list(holder)):
                if id(value) in self._new and holder[i] is value:  # Another thread may move it.
                    holder[i] = self._new[id(value)]
        elif type(holder) is set:
            for value in [value for value in holder if id(value) in self._new]:
                holder.remove(value)
                holder.add(self._new[id(value)])
        elif issubclass(type(holder), dict) and is_plain_dict(type(holder)):
            owner = self._class_of(holder)
            user = user_of(holder, self._owners.get(id(holder), []))
            if owner is not None:
                replace_in_class(owner, holder, self._new)
            elif user is not None:
                self._replace_attributes(user)
            else:
                replace_in_dict(holder, self._new)

    def _in_tuple(self, values: Any) -> tuple[Any, ...]:
        """Copy a tuple. Never read one that ``tuple(...)`` may still be filling: that crashes."""
        return tuple(self._new.get(id(value), value) for value in values)

    def _class_of(self, names: dict[str, Any]) -> Any:
        return next((o for o in self._owners.get(id(names), []) if issubclass(type(o), type)), None)

    def _is_in_a_value(self, held: Any, depth: int = 4) -> bool:
        """Say whether a container is part of an object that compares by value."""
        for owner in self._owners.get(id(held), []) if depth else ():
            if type(owner) in (dict, list):
                if self._is_in_a_value(owner, depth - 1):
                    return True
            elif not compares_by_identity(owner) and (
                vars_of(owner) is held or any(value is held for _, value in attributes(owner))
            ):
                return True
        return False

    def _kind_of(self, holder: Any) -> str:
        user = user_of(holder, self._owners.get(id(holder), []))
        return type(holder if user is None else user).__name__

    def _name_of(self, held: Any, depth: int = 3) -> str:
        """Name the variable that leads to an object; empty if none is found."""
        for owner in self._owners.get(id(held), []) if depth else ():
            if _is_of_jax(owner):
                continue
            if type(owner) in (list, tuple) or vars_of(owner) is held:
                name = self._name_of(owner, depth - 1)
            elif type(owner) is dict:
                key = self._key_of(owner, held)
                if key is _MISSING:  # Replaced.
                    continue
                owners = self._owners.get(id(owner), [])
                user = self._class_of(owner) or user_of(owner, owners)
                if _is_of_jax(user):
                    continue
                prefix = self._modules.get(id(owner)) or (_text(user) if user is not None else "")
                within = "" if prefix else self._name_of(owner, depth - 1)
                name = f"{prefix}.{key}" if prefix else within and f"{within}[{_shown(key)}]"
            else:  # Since Python 3.11 most objects have no dict until somebody asks for it.
                names = [name for name, value in attributes(owner) if value is held]
                name = f"{_text(owner)}.{names[0]}" if names else ""
            if name:
                return name
        return ""

    def _key_of(self, owner: dict[Any, Any], held: Any) -> Any:
        keys = self._keys.get(id(owner))
        if keys is None:
            keys = {id(value): key for key, value in list(dict.items(owner))}
            self._keys[id(owner)] = keys
        return keys.get(id(held), _MISSING)


_MISSING = object()


def _referrers(held: list[Any]) -> list[Any]:
    """Do what ``gc.get_referrers`` does, which takes too long for many objects."""
    if len(held) < 300:
        return gc.get_referrers(*held)
    wanted = {id(value) for value in held}
    return [o for o in gc.get_objects() if not wanted.isdisjoint(map(id, gc.get_referents(o)))]


def _try(change: Callable[[Any], _T], holder: Any) -> _T | None:
    try:
        return change(holder)
    except Exception:  # One holder that refuses must not keep the others stale.
        LOGGER.debug("cannot replace a function in a %s", type(holder), exc_info=True)
        return None


def _is_of_jax(owner: Any) -> bool:
    """Say whether JAX made an object, for its caches, which are dropped."""
    return str(type(owner).__module__).startswith(("jax.", "jaxlib."))


def _text(owner: Any) -> str:
    if issubclass(type(owner), type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return f"<{type(owner).__qualname__} object>"


def _shown(key: Any) -> str:
    return repr(key) if type(key) in (str, int, float, bool) else "..."
