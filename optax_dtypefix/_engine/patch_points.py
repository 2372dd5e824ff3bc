"""Wrap each target once, with one layer a patch, and record the rebindings of its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .locate import defining_module, find, owner_of
from .rebinding import Rebinding, rebind_aliases, rebind_point, stale_names
from .wrapper import PatchedFunction, patched_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from .patch import Replacement, Target


class PatchPoint:
    """A module or class attribute that patches replace, each by a layer of one wrapper."""

    def __init__(self, module: str, qualname: str) -> None:
        self.path = f"{module}:{qualname}"
        self.name = qualname
        self.layers: dict[str, Replacement] = {}
        self.active: list[PatchedFunction] = []  # More than one if the module was reloaded.
        self._where = (module, qualname)
        self._known: list[PatchedFunction] = []
        self._foreign_layer: tuple[Any, PatchedFunction | None] = (None, None)
        self._ledger: list[Rebinding] = []

    @property
    def lost(self) -> bool:
        """Whether callers no longer reach the wrapper: the function was reloaded or removed.

        A wrapper that other code put around ours is assumed to call ours.
        """
        return self._misses(find(*self._where))

    def _misses(self, current: Any) -> bool:
        return current is None or (bool(self.active) and _was_reloaded(current, self.active[-1]))

    def bind(self) -> bool:
        """Put a wrapper in place, unless there is one, perhaps inside a foreign wrapper.

        Returns:
          Whether a wrapper is in place whose aliases are not rebound yet.
        """
        current = find(*self._where)
        if current is None or (self.active and not self._misses(current)):
            return False
        layer, below = self._foreign_layer
        existing = below if current is layer else patched_in(current)
        # Use the same wrapper again for the same function: names that code imported after us copied
        # from the wrapper must follow a second ``apply``.
        wrapper = existing or self._wrapper_of(current) or PatchedFunction(current)
        if existing is None:
            self._ledger.append(rebind_point(*owner_of(*self._where), wrapper))
        if wrapper not in self._known:
            self._known.append(wrapper)
        wrapper._self_called = True  # Until now it did not see the calls.
        self.active.append(wrapper)
        return True

    def _wrapper_of(self, stock: Any) -> PatchedFunction | None:
        return next((known for known in self._known if known.__wrapped__ is stock), None)

    def stack(self, replacements: Iterable[Replacement]) -> None:
        """Set the layers of the wrappers, the first one outermost."""
        replacements = tuple(replacements)
        for wrapper in self.active:
            wrapper._self_set_layers(replacements)

    def remember(self, rebinding: Rebinding) -> None:
        """Add the rebinding of an alias to the ledger."""
        self._ledger.append(rebinding)

    def restore(self) -> list[str]:
        """Restore every name. Return the names on which other code put a wrapper."""
        foreign = [layer for entry in reversed(self._ledger) if (layer := entry.restore())]
        current = find(*self._where)
        if not (foreign or self.lost or current is self.active[-1].__wrapped__):
            foreign = [f"{self.path}, now {current!r}"]
            self._foreign_layer = (current, self.active[-1])
        self._ledger = []
        self.active = []
        return foreign


class PatchPoints:
    """All patch points of one package."""

    def __init__(self, package: str, order: Sequence[str]) -> None:
        self._package = package
        self._order = order
        self._points: dict[str, PatchPoint] = {}
        self._fresh: list[PatchPoint] = []

    def attach(self, patch_id: str, target: Target) -> str:
        """Add a layer, which acts from the next :meth:`refresh` on.

        Returns:
          The path of the wrapped function, as ``module:qualname``.

        Raises:
          LookupError: the package does not have the target.
          TypeError: the target is neither a function nor a method.
        """
        module = defining_module(target)
        if module is None:
            raise LookupError(f"no {target.qualname} in {' or '.join(target.modules)}")
        stock = find(module, target.qualname)
        # ``__new__`` is the one static method that is never looked up on an instance.
        binds = isinstance(stock, (classmethod, staticmethod)) and target.name != "__new__"
        if binds or not (callable(stock) or target.name == "__new__"):
            raise TypeError(f"{module}:{target.qualname} is neither a function nor a method")
        point = PatchPoint(*_defined_at(module, target.qualname))
        point = self._points.setdefault(point.path, point)
        point.layers[patch_id] = target.replacement
        self._bind(point)
        return point.path

    def detach(self, patch_id: str) -> None:
        """Remove the layers of a patch, from the next :meth:`refresh` on."""
        for point in self._points.values():
            point.layers.pop(patch_id, None)

    def lost(self, patch_id: str) -> str:
        """Say which callers no longer reach a patch, after a reload for example; empty if all do.

        The names in the package count: a mock that ends may put the stock function back there.
        """
        mine = [point for point in self._points.values() if patch_id in point.layers]
        paths = [point.path for point in mine if point.lost]
        if paths:
            return f"{', '.join(paths)} was reloaded or removed"
        names = stale_names(_swaps(mine), self._package)
        return f"{', '.join(names)} was set back to the stock function" if names else ""

    def wrappers(self, ids: Collection[str]) -> list[PatchedFunction]:
        """List the wrappers in which some patches have a layer."""
        return [
            wrapper
            for point in self._points.values()
            if not point.layers.keys().isdisjoint(ids)
            for wrapper in point.active
        ]

    def stock(self, ids: Collection[str] = ()) -> list[Any]:
        """List the stock functions that some patches, or any, have patched now."""
        return [wrapper._self_stock for wrapper in self.wrappers(ids or self._order)]

    def stack(self, suspended: Collection[str]) -> None:
        """Set the layers of every wrapper, without those of suspended patches."""
        for point in self._points.values():
            point.stack(
                point.layers[patch_id]
                for patch_id in self._order
                if patch_id in point.layers and patch_id not in suspended
            )

    def refresh(
        self, suspended: Collection[str], *, importing: bool = False
    ) -> tuple[bool, list[str]]:
        """Set the layers of every wrapper, and bind or restore its names.

        Args:
          suspended: patches whose layers do not act now but remain.
          importing: whether the package is being imported, so that no other code has a copy yet.

        Returns:
          Whether a name was bound, and the names that were not restored because other code wrapped
          them.
        """
        attached = [point for point in self._points.values() if point.layers]
        just_bound = set(self._fresh)
        for point in attached:
            if point not in just_bound:
                self._bind(point)
        self.stack(suspended)
        fresh = [point for point in self._fresh if point.layers]
        self._fresh = []
        if importing:  # Nobody has called these yet.
            for point in fresh:
                point.active[-1]._self_called = False
        bound = bool(fresh or stale_names(_swaps(attached), self._package))
        if bound:
            by_wrapper = {id(wrapper): point for point in attached for wrapper in point.active}
            package = self._package if importing else None
            for rebinding in rebind_aliases(_swaps(attached), package):
                point_of_alias = by_wrapper.get(id(rebinding.wrapper))  # None for a tuple.
                if point_of_alias is not None:
                    point_of_alias.remember(rebinding)
                    if not importing:  # Calls by that name were not seen.
                        rebinding.wrapper._self_called = True
        return bound, self._restore()

    def _bind(self, point: PatchPoint) -> None:
        if point.bind():
            self._fresh.append(point)

    def _restore(self) -> list[str]:
        leaving = [point for point in self._points.values() if point.active and not point.layers]
        swaps = [(wrapper, wrapper.__wrapped__) for point in leaving for wrapper in point.active]
        foreign = [layer for point in leaving for layer in point.restore()]
        if swaps:  # Copies of the wrapper, and tuples, are in no ledger.
            rebind_aliases(swaps)
        return foreign


def _swaps(points: Iterable[PatchPoint]) -> tuple[tuple[Any, Any], ...]:
    return tuple((wrapper.__wrapped__, wrapper) for point in points for wrapper in point.active)


def _defined_at(module: str, qualname: str) -> tuple[str, str]:
    """Return where a function is defined: two patches may name it by different modules."""
    function = find(module, qualname)
    path = (str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", "")))
    defined = find(*path)
    wrapper = patched_in(defined)  # Of another patch whose aliases are not rebound yet.
    same = defined is function or (wrapper is not None and wrapper.__wrapped__ is function)
    return path if same else (module, qualname)


def _was_reloaded(current: Any, wrapper: PatchedFunction) -> bool:
    stock = wrapper.__wrapped__
    return patched_in(current) is None and all(
        getattr(current, name, None) == getattr(stock, name, None)
        for name in ("__module__", "__qualname__")
    )
