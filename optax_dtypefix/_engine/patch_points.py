"""Wrap each function that patches replace, once, and bind its names to the wrapper."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .import_hook import is_being_imported
from .locate import find
from .rebinding import dict_of, loaded_modules, rebind_aliases, stale_names
from .wrapper import PatchedFunction, patched_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .locate import Place
    from .patch import Replacement


class PatchPoints:
    """Our wrappers of functions. What each of them should call, the slots of the patches say.

    After a reload, a function has several wrappers. They stay, also without layers: names that
    other code copied from a wrapper must follow a second ``apply``.
    """

    def __init__(self) -> None:
        self._wrappers: defaultdict[Place, list[PatchedFunction]] = defaultdict(list)

    def paths(self, places: Iterable[Place]) -> tuple[str, ...]:
        """List those functions that are wrapped, as ``module:qualname``."""
        return tuple(":".join(place) for place in places if self._wrappers[place])

    def lost(self, places: Iterable[Place]) -> str:
        """Say which callers no longer reach our wrappers, after a reload for example.

        Empty if all do. The names in the package count: a mock that ends may put the stock function
        back there.
        """
        paths = self.paths(filter(self._is_lost, places))
        if paths:
            return f"{', '.join(paths)} was reloaded or removed"
        names = stale_names(self._swaps(places), *map(package_of, places))
        return f"{', '.join(names)} was set back to the stock function" if names else ""

    def refresh(self, layers: Mapping[Place, Sequence[Replacement]]) -> tuple[bool, list[str]]:
        """Set the layers of every wrapper, and bind or restore its names.

        Args:
          layers: the layers of each function that is to be wrapped. Without layers, the wrapper
            calls stock.

        Returns:
          Whether traces of JAX may hold a function that changed, and the names that were not
          restored because other code wrapped them.
        """
        packages = {package_of(place) for place in layers if self._wrap(place)}
        changed = False
        for place, wrappers in self._wrappers.items():
            for wrapper in wrappers:
                changed |= wrapper._self_set_layers(layers.get(place, ()))
        swaps = self._swaps(layers)
        if packages and all(is_being_imported(sys.modules.get(name)) for name in packages):
            rebind_aliases(swaps, *packages)  # No other code has a copy, or saw a call.
        elif packages or stale_names(swaps, *map(package_of, layers)):
            changed |= rebind_aliases(swaps)
        return changed, self._restore([p for p in self._wrappers if p not in layers])

    def _wrap(self, place: Place) -> bool:
        """Make a wrapper of a function that has none, perhaps inside a foreign wrapper."""
        current, wrappers = find(*place), self._wrappers[place]
        is_known = any(wrapper._self_attribute is current for wrapper in wrappers)
        if current is None or is_known or (wrappers and not self._is_lost(place)):
            return False
        wrappers.append(PatchedFunction(current))
        return True

    def _is_lost(self, place: Place) -> bool:
        """Return whether callers no longer reach a wrapper: the function was reloaded or removed.

        A wrapper that other code put around ours, or a mock, is assumed to call ours.
        """
        current, wrappers = find(*place), self._wrappers[place]
        if current is None or not wrappers:  # Of a package that is not imported, there is none.
            return bool(wrappers)
        stock, names = wrappers[-1]._self_attribute, ("__module__", "__qualname__")
        is_stock = all(getattr(current, n, None) == getattr(stock, n, None) for n in names)
        return is_stock and patched_in(current) is None

    def _swaps(self, places: Iterable[Place]) -> list[tuple[Any, Any]]:
        wrappers = [wrapper for place in places for wrapper in self._wrappers[place]]
        return [(wrapper._self_attribute, wrapper) for wrapper in wrappers]

    def _restore(self, places: Sequence[Place]) -> list[str]:
        """Restore the names of wrappers. Describe the foreign wrappers around ours that stay."""
        rebind_aliases((wrapper, stock) for stock, wrapper in self._swaps(places))
        foreign: dict[int, str] = {}
        for place in places:
            for module in loaded_modules(package_of(place)):
                name = str(dict_of(module).get("__name__"))
                current = find(name, place[1])
                if patched_in(current) in self._wrappers[place]:
                    foreign[id(current)] = f"{name}.{place[1]}, now {current!r}"
        return [*foreign.values()]


def package_of(place: Place) -> str:
    """Return the package of a function."""
    return place[0].partition(".")[0]
