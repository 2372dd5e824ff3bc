"""Rebind every copy of a function, remember each rebinding, and restore it later.

``from optax import lbfgs`` copies a reference: replacing the function in the module that defines it
leaves the copy stale. The sweep finds the copies in every loaded module, also inside
``functools.partial``. The ledger of rebindings restores each name.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from .wrapper import patched_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .wrapper import PatchedFunction


class Rebinding(NamedTuple):
    """One name in one module or class: its value before, and the value that we set."""

    owner: Any
    name: str
    before: Any
    after: Any

    @property
    def wrapper(self) -> Any:
        """The function that we set, without the ``functools.partial`` around it."""
        return _innermost(self.after)

    def restore(self) -> str | None:
        """Put the old value back, unless other code rebound the name since.

        Returns:
          A description of the wrapper that other code put around ours, None if there is none.
        """
        current = vars(self.owner).get(self.name)
        if current is self.after:
            setattr(self.owner, self.name, self.before)
            return None
        if current is None or patched_in(current) is not self.wrapper:
            return None
        return f"{_name_of(self.owner)}.{self.name}, now {current!r}"


def bind(owner: Any, name: str, wrapper: PatchedFunction) -> Rebinding:
    """Put a wrapper where its stock function is defined."""
    rebinding = Rebinding(owner, name, vars(owner)[name], wrapper)
    setattr(owner, name, wrapper)
    return rebinding


_IN_MODULES: Any = vars(ModuleType)["__dict__"]
dict_of = _IN_MODULES.__get__
"""Read the ``vars`` of a module without running a property of its class."""


def rebind_aliases(swaps: Iterable[tuple[Any, Any]], within: str = "") -> list[Rebinding]:
    """Rebind every copy of some functions in loaded modules, in one sweep.

    Args:
      swaps: pairs of a function to look for and its replacement.
      within: the only package to search, if given; else search all of ``sys.modules``.
    """
    done = []
    for module, name, value, after in _stale(swaps, within):
        with contextlib.suppress(Exception):  # One that refuses must not keep the others stale.
            setattr(module, name, after)
            done.append(Rebinding(module, name, value, after))
    return done


def stale_names(swaps: Iterable[tuple[Any, Any]], within: str) -> list[str]:
    """List the names in a package that hold one of some functions: :func:`rebind_aliases` would."""
    return [f"{_name_of(module)}.{name}" for module, name, _, _ in _stale(swaps, within)]


def _stale(
    swaps: Iterable[tuple[Any, Any]], within: str
) -> Iterator[tuple[ModuleType, str, Any, Any]]:
    swaps = tuple(swaps)  # Keeps the functions alive, so that no id is used again.
    by_id = {id(old): new for old, new in swaps}
    for module, name, value in _candidates(by_id, within):
        after = _swapped(value, by_id)
        if after is not None:
            yield module, name, value, after


def _swapped(value: Any, by_id: Mapping[int, Any]) -> Any:
    after = by_id.get(id(value))
    if after is None and type(value) is functools.partial:
        function = _swapped(value.func, by_id)
        if function is not None:
            after = functools.partial(function, *value.args, **value.keywords)
            after.__dict__.update(value.__dict__)
    return after


def _innermost(function: Any) -> Any:
    while type(function) is functools.partial:
        function = function.func
    return function


def loaded_modules(within: str = "") -> Iterator[ModuleType]:
    """Yield the loaded modules of a package, or all, without triggering a lazy module."""
    for name, module in list(sys.modules.items()):
        if within and name != within and not name.startswith(f"{within}."):
            continue
        if issubclass(type(module), ModuleType):
            yield module


def _candidates(by_id: Mapping[int, Any], within: str) -> Iterator[tuple[ModuleType, str, Any]]:
    partial = functools.partial
    for module in loaded_modules(within):
        # The raw __dict__: attribute access could trigger a lazy module or run foreign code.
        names = list(dict_of(module).items())
        for name, value in names:  # Tens of thousands: call nothing for most of them.
            if id(value) in by_id or type(value) is partial:
                yield module, name, value


def _name_of(owner: Any) -> str:
    module = getattr(owner, "__module__", None)
    name = getattr(owner, "__qualname__", None) or owner.__name__
    return f"{module}.{name}" if module else str(name)
