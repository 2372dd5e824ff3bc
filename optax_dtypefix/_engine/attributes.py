"""Read and replace what objects hold, without running code of their classes."""

from __future__ import annotations

from collections import OrderedDict
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def set_partial(partial: Any, function: Any, args: tuple[Any, ...]) -> None:
    """Change a ``functools.partial`` in place."""
    partial.__setstate__((function, args, partial.keywords, vars(partial)))


def replace_in_attributes(user: Any, new: Mapping[int, Any]) -> None:
    """Replace values by their ids in the slots and the attributes of an object."""
    for slot in _slots(type(user)):
        if (old := id(_get(slot, user))) in new:
            slot.__set__(user, new[old])
    replace_in_dict(vars_of(user), new)


def replace_in_class(owner: Any, names: dict[str, Any], new: Mapping[int, Any]) -> None:
    """Replace the attributes of a class that have one of these ids."""
    for key, value in list(names.items()):
        if id(value) in new:
            type.__setattr__(owner, key, new[id(value)])  # Also clears the cache of methods.


def replace_in_dict(holder: dict[Any, Any], new: Mapping[int, Any]) -> None:
    """Replace the values of a dict that have one of these ids."""
    try:
        found = [(key, value) for key, value in dict.items(holder) if id(value) in new]
    except RuntimeError:  # Another thread changed its size.
        found = [(key, value) for key, value in list(dict.items(holder)) if id(value) in new]
    for key, value in found:
        if dict.get(holder, key) is value:
            dict.__setitem__(holder, key, new[id(value)])


def is_plain_dict(kind: type[Any]) -> bool:
    """Say whether a kind of dict compares as a dict, and keeps nothing else when one sets a key."""
    sets: Any = kind.__setitem__
    return kind.__hash__ is None and sets in (dict.__setitem__, OrderedDict.__setitem__)


def user_of(held: Any, owners: list[Any]) -> Any:
    """Return the object whose attributes a dict has; None if it is a plain dict."""
    return next((owner for owner in owners if vars_of(owner) is held), None)


def attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the slots and the attributes of an object."""
    for slot in _slots(type(holder)):
        yield slot.__name__, _get(slot, holder)
    yield from list(vars_of(holder).items())


def _slots(kind: type[Any]) -> Iterator[MemberDescriptorType]:
    classes = () if kind is FunctionType else kind.__mro__  # Its globals are no attribute.
    found = (member for base in classes for member in vars(base).values())
    return (member for member in found if type(member) is MemberDescriptorType)


def vars_of(holder: Any) -> dict[str, Any]:
    """Return the attributes of an object, without running a property of its class."""
    found = _static(type(holder), "__dict__")
    if type(found) not in (GetSetDescriptorType, MemberDescriptorType):
        return {}
    names = found.__get__(holder)
    return names if type(names) is dict else {}


def _get(slot: MemberDescriptorType, holder: Any) -> Any:
    try:
        return slot.__get__(holder)
    except AttributeError:  # Not set.
        return None


def compares_by_identity(holder: Any) -> bool:
    """Say whether an object may change while it is a key of a dict: hashed by identity, or not."""
    # Not ``type(holder).__hash__``: a mock would make one.
    return _static(type(holder), "__hash__") in (None, object.__hash__)


def _static(kind: type[Any], name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
