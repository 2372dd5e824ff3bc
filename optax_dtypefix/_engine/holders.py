"""Replace functions in the objects that hold them beside the names of modules.

Users keep functions of optax in registries, lists, closures, default arguments, attributes and
``functools.partial``. The garbage collector finds these objects, and they are changed in place. An
object that compares by value stays as it is, for it may be a key of a dict: a tuple, for example,
or a frozen dataclass.
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from types import (
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
)
from typing import TYPE_CHECKING, Any, Callable

from .._logging import LOGGER
from .rebinding import dict_of, loaded_modules
from .stale import RECORDS, held_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    search = _Search(dict(zip(map(id, functions), replacements)))
    found = gc.get_referrers(*functions)
    return search.run([o for o in found if id(o) not in ours and type(o) not in _LEFT_OUT])


class _Search:
    """One search for what holds some functions."""

    def __init__(self, new: Mapping[int, Any]) -> None:
        self._new = new
        self._owners: dict[int, list[Any]] = {}  # By the id of a holder: what holds it.
        modules = map(dict_of, loaded_modules())
        self._modules = {id(names): names.get("__name__") for names in modules}

    def run(self, holders: list[Any]) -> dict[int, list[str]]:
        """Replace what can be replaced. Return the names of what cannot, by id of the function."""
        for holder in holders:
            _try(_replace, holder, self._new)
        left = [holder for holder in holders if any(self._olds_in(holder))]
        owners = self._find_owners(
            left, holders
        )  # Few programs get here: this takes as long again.
        dicts = {id(holder) for holder in left}
        nested = [o for o in owners if type(o) in (dict, list, tuple) or id(_vars(o)) in dicts]
        self._find_owners(nested, holders, left, owners)
        for holder in left:
            _try(self._replace_by_owner, holder)
        kept: dict[int, list[str]] = {}
        for holder in left:
            for old in self._olds_in(holder):
                if name := self._name_of(holder):
                    user = _attributes_of(holder, self._owners[id(holder)])
                    kind = type(holder if user is None else user).__name__
                    kept.setdefault(id(old), []).append(f"{name} ({kind})")
        return kept

    def _olds_in(self, holder: Any) -> Iterator[Any]:
        return (held for held in gc.get_referents(holder) if id(held) in self._new)

    def _find_owners(self, holders: list[Any], *ours: list[Any]) -> list[Any]:
        wanted = {id(holder) for holder in holders} - self._modules.keys() - self._owners.keys()
        skip = {id(holders), *map(id, ours), *map(id, self._owners.values())}
        owners = []
        for owner in gc.get_referrers(*holders) if wanted else ():
            held = wanted.intersection(map(id, gc.get_referents(owner)))
            if held and id(owner) not in skip and type(owner) not in _LEFT_OUT:
                owners.append(owner)
                for holder in held:
                    self._owners.setdefault(holder, []).append(owner)
        return owners

    def _replace_by_owner(self, holder: Any) -> None:
        """Replace functions in a dict, and in what only the owner can replace."""
        owners = self._owners.get(id(holder), [])
        if issubclass(type(holder), dict) and id(holder) not in self._modules:
            _replace_in_dict(holder, owners, self._new)
        elif type(holder) is tuple:
            after = tuple(self._new.get(id(value), value) for value in holder)
            for owner in owners:
                if type(owner) is FunctionType and owner.__defaults__ is holder:
                    owner.__defaults__ = after
                elif type(owner) is functools.partial and owner.args is holder:
                    _set_partial(owner, owner.func, after)
        elif type(holder) is staticmethod:
            new = {id(holder): staticmethod(self._new[id(holder.__func__)])}
            for owner in owners:
                if type(owner) is dict:
                    _replace_in_dict(owner, self._owners.get(id(owner), []), new)

    def _name_of(self, held: Any, depth: int = 3) -> str:
        """Name the variable that leads to an object; empty if none is found."""
        for owner in self._owners.get(id(held), []) if depth else ():
            if type(owner) in (list, tuple):
                name = self._name_of(owner, depth - 1)
            elif type(owner) is dict:
                keys = [key for key, value in owner.items() if value is held]
                if not keys:  # Replaced.
                    continue
                user = _attributes_of(owner, self._owners.get(id(owner), []))
                prefix = self._modules.get(id(owner)) or (_text(user) if user is not None else "")
                within = "" if prefix else self._name_of(owner, depth - 1)
                name = f"{prefix}.{keys[0]}" if prefix else within and f"{within}[{keys[0]!r}]"
            elif _vars(owner) is held:
                name = self._name_of(owner, depth - 1)
            else:  # Since Python 3.11 most objects have no dict until somebody asks for it.
                keys = [key for key, value in _vars(owner).items() if value is held]
                name = f"{_text(owner)}.{keys[0]}" if keys else ""
            if name:
                return name
        return ""


def _try(change: Callable[..., None], holder: Any, *args: Any) -> None:
    try:
        change(holder, *args)
    except Exception:  # One holder that refuses must not keep the others stale.
        LOGGER.debug("cannot replace a function in a %s", type(holder), exc_info=True)


def _replace(holder: Any, new: Mapping[int, Any]) -> None:
    """Replace functions in a holder that shows what it holds, unless it compares by value."""
    kind = type(holder)
    if kind in (list, deque):
        for i, value in enumerate(list(holder)):
            if id(value) in new:
                holder[i] = new[id(value)]
    elif kind is set:
        for value in [value for value in holder if id(value) in new]:
            holder.remove(value)
            holder.add(new[id(value)])
    elif kind is CellType:
        holder.cell_contents = new[id(holder.cell_contents)]
    elif kind is functools.partial:
        func = new.get(id(holder.func), holder.func)
        _set_partial(holder, func, holder.args)
    elif not issubclass(kind, (dict, tuple, FunctionType)) and _compares_by_identity(holder):
        for slot in (member for base in kind.__mro__ for member in vars(base).values()):
            if type(slot) is MemberDescriptorType and (old := id(_get(slot, holder))) in new:
                slot.__set__(holder, new[old])
        _replace_in_dict(_vars(holder), [], new)


def _set_partial(partial: Any, function: Any, args: tuple[Any, ...]) -> None:
    partial.__setstate__((function, args, partial.keywords, vars(partial)))


def _replace_in_dict(holder: dict[Any, Any], owners: list[Any], new: Mapping[int, Any]) -> None:
    user = _attributes_of(holder, owners)
    if user is not None and not (isinstance(user, type) or _compares_by_identity(user)):
        return
    for key, value in list(dict.items(holder)):
        if id(value) in new:
            if isinstance(user, type):
                type.__setattr__(user, key, new[id(value)])  # Also clears the cache of methods.
            else:
                dict.__setitem__(holder, key, new[id(value)])


def _attributes_of(held: dict[Any, Any], owners: list[Any]) -> Any:
    """Return the class or the object whose attributes a dict has; None if it is a plain dict."""
    return next((o for o in owners if isinstance(o, type) or _vars(o) is held), None)


def _vars(holder: Any) -> dict[str, Any]:
    """Return the attributes of an object, without running a property of its class."""
    try:
        found = object.__getattribute__(holder, "__dict__")
    except Exception:
        return {}
    return found if type(found) is dict else {}


def _get(slot: MemberDescriptorType, holder: Any) -> Any:
    try:
        return slot.__get__(holder)
    except AttributeError:  # Not set.
        return None


def _compares_by_identity(holder: Any) -> bool:
    own_hash: Any = type(holder).__hash__
    return own_hash is None or own_hash is object.__hash__


def _text(owner: Any) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return f"<{type(owner).__qualname__} object>"
