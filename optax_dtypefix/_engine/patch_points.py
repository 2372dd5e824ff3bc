"""Wrap each target once, with one layer a patch, and record the rebindings of its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .locate import defining_module, find, owner_of
from .rebinding import dict_of, loaded_modules, rebind, rebind_aliases, stale_names
from .wrapper import PatchedFunction, patched_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from .patch import Replacement, Target


class PatchPoint:
    """A module or class attribute that patches replace, each by a layer of one wrapper.

    Args:
      package: the package that defines it.
      module: the module.
      qualname: the name in the module.

    Attributes:
      package: the package that defines it.
      where: the module and the qualified name of the stock function.
      path: the same as text, ``module:qualname``.
      layers: the replacements, by the id of their patch.
      builds: for a class, the names of the functions whose objects a layer changes.
      wrappers: our wrapper of the stock function; after a reload, of each one that was there. They
        stay: names that other code copied from a wrapper must follow a second ``apply``.
    """

    def __init__(self, package: str, module: str, qualname: str) -> None:
        self.package = package
        self.path = f"{module}:{qualname}"
        self.layers: dict[str, Replacement] = {}
        self.builds: set[str] = set()
        self.wrappers: list[PatchedFunction] = []
        self.where = (module, qualname)

    @property
    def lost(self) -> bool:
        """Whether callers no longer reach a wrapper: the function was reloaded or removed.

        A wrapper that other code put around ours, or a mock, is assumed to call ours. What was
        never bound is of a package that the program has not imported.
        """
        if not self.wrappers:
            return False
        current = find(*self.where)
        return current is None or (patched_in(current) is None and self._is_stock(current))

    def bind(self) -> bool:
        """Put a wrapper in place, unless there is one, perhaps inside a foreign wrapper."""
        current = find(*self.where)
        if current is None or (self.wrappers and not self.lost):
            return False
        wrapper = next((w for w in self.wrappers if w.__wrapped__ is current), None)
        if wrapper is None:
            wrapper = PatchedFunction(current)
            self.wrappers.append(wrapper)
        rebind(*owner_of(*self.where), current, wrapper)
        return True

    def wrapped_by_others(self) -> dict[int, str]:
        """Describe the wrappers that other code put around ours in the package, by their ids."""
        qualname = self.where[1]
        names = [str(dict_of(module).get("__name__")) for module in loaded_modules(self.package)]
        found = ((name, find(name, qualname)) for name in names)
        return {
            id(current): f"{name}.{qualname}, now {current!r}"
            for name, current in found
            if patched_in(current) in self.wrappers
        }

    def _is_stock(self, current: Any) -> bool:
        stock = self.wrappers[-1].__wrapped__
        names = ("__module__", "__qualname__")
        return all(getattr(current, n, None) == getattr(stock, n, None) for n in names)


class PatchPoints:
    """All patch points of one package."""

    def __init__(self, package: str, order: Sequence[str]) -> None:
        self.package = package
        self.order = order
        self._points: dict[str, PatchPoint] = {}

    def attach(self, patch_id: str, target: Target, layer: Replacement) -> None:
        """Add a layer, which acts from the next :meth:`refresh` on.

        Raises:
          TypeError: the target is neither a function nor a method.
        """
        module = defining_module(target) or target.modules[0]  # Another package may come later.
        stock = find(module, target.qualname)
        # ``__new__`` is the one static method that is never looked up on an instance.
        binds = not callable(stock) or isinstance(stock, (classmethod, staticmethod))
        if stock is not None and binds and target.name != "__new__":
            raise TypeError(f"{module}:{target.qualname} is neither a function nor a method")
        # Where it is defined: two patches may name it by different modules.
        where = str(getattr(stock, "__module__", "")), str(getattr(stock, "__qualname__", ""))
        if stock is None or find(*where) is not stock:
            where = module, target.qualname
        point = self._points.setdefault(":".join(where), PatchPoint(target.package, *where))
        point.layers[patch_id] = layer
        point.builds.update(target.builds)

    def detach(self, patch_id: str) -> None:
        """Remove the layers of a patch, from the next :meth:`refresh` on."""
        for point in self._points.values():
            point.layers.pop(patch_id, None)

    def paths(self, patch_id: str) -> tuple[str, ...]:
        """List the functions in which a patch has a layer, as ``module:qualname``."""
        return tuple(point.path for point in self._with_layers((patch_id,)) if point.wrappers)

    def lost(self, patch_id: str) -> str:
        """Say which callers no longer reach a patch, after a reload for example; empty if all do.

        The names in the package count: a mock that ends may put the stock function back there.
        """
        points = self._with_layers((patch_id,))
        paths = [point.path for point in points if point.lost]
        if paths:
            return f"{', '.join(paths)} was reloaded or removed"
        names = stale_names(_swaps(points), *_packages(points))
        return f"{', '.join(names)} was set back to the stock function" if names else ""

    def builders(self) -> set[str]:
        """Name the functions and classes of the package whose objects are changed."""
        points = [p for p in self._with_layers(self.order) if p.package == self.package]
        names = {point.where[1].partition(".")[0] for point in points}
        return names.union(*(point.builds for point in points))

    def stack(self, suspended: Collection[str]) -> bool:
        """Set the layers of every wrapper, without those of suspended patches.

        Returns:
          Whether a function changed that was called before: traces of JAX may hold the old one.
        """
        acting = [patch_id for patch_id in self.order if patch_id not in suspended]
        changed = [
            wrapper._self_set_layers(point.layers[i] for i in acting if i in point.layers)
            for point in self._points.values()
            for wrapper in point.wrappers
        ]
        return any(changed)

    def refresh(self, suspended: Collection[str], *, importing: str = "") -> tuple[bool, list[str]]:
        """Set the layers of every wrapper, and bind or restore its names.

        Args:
          suspended: patches whose layers do not act now but remain.
          importing: the package that is being imported, so that no other code has a copy of its
            functions yet; empty if none is.

        Returns:
          Whether traces of JAX may hold a function that changed, and the names that were not
          restored because other code wrapped them.
        """
        points = self._with_layers(self.order)
        bound = [point for point in points if point.bind()]
        importing = importing if _packages(bound) <= {importing} else ""
        changed = self.stack(suspended)
        swaps = _swaps(points)
        rebound = bool(bound)
        if bound or stale_names(swaps, *_packages(points)):
            rebound |= rebind_aliases(swaps, *filter(None, [importing]))
        # Nobody saw the calls of a name before it was bound.
        return changed or (rebound and not importing), self._restore()

    def _restore(self) -> list[str]:
        """Restore the names of the wrappers without layers. Return those of foreign wrappers."""
        leaving = [p for p in self._points.values() if p.wrappers and not p.layers]
        if leaving:
            rebind_aliases((wrapper, stock) for stock, wrapper in _swaps(leaving))
        foreign: dict[int, str] = {}
        for point in leaving:
            foreign.update(point.wrapped_by_others())
        return [*foreign.values()]

    def _with_layers(self, ids: Collection[str]) -> list[PatchPoint]:
        return [p for p in self._points.values() if not p.layers.keys().isdisjoint(ids)]


def _packages(points: Iterable[PatchPoint]) -> set[str]:
    return {point.package for point in points}


def _swaps(points: Iterable[PatchPoint]) -> list[tuple[Any, Any]]:
    return [(wrapper.__wrapped__, wrapper) for point in points for wrapper in point.wrappers]
