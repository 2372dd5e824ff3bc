"""Where the wrappers stand: one site a target, its layers, and the ledger of its rebindings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .locate import defining_module, find, owner_of
from .rebinding import Rebinding, bind, rebind_aliases
from .wrapper import PatchedFunction, patched_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from .patch import Replacement, Target


class PatchPoint:
    """A module or class attribute that patches share, each as a layer of one wrapper."""

    def __init__(self, module: str, qualname: str) -> None:
        self.path = f"{module}:{qualname}"
        self.layers: dict[str, Replacement] = {}
        self.active: list[PatchedFunction] = []  # More than one if the module was reloaded.
        self._where = (module, qualname)
        self._known: list[PatchedFunction] = []
        self._foreign_layer: tuple[Any, PatchedFunction | None] = (None, None)
        self._ledger: list[Rebinding] = []

    @property
    def lost(self) -> bool:
        """Whether callers no longer reach the wrapper: the function was defined anew, or is gone.

        A layer that somebody put on top is taken to call what it was put on.
        """
        current = find(*self._where)
        return current is None or (bool(self.active) and _was_reloaded(current, self.active[-1]))

    def bind(self) -> bool:
        """Puts a wrapper in place, unless one stands there, or below somebody's layer.

        Returns:
          Whether there is a wrapper in place whose aliases were not looked for yet.
        """
        owner, name = owner_of(*self._where)
        current = find(*self._where)
        if current is None or (self.active and not self.lost):
            return False
        layer, below = self._foreign_layer
        standing = below if current is layer else patched_in(current)
        # The same wrapper again for the same function: names copied while it stood there, by code
        # that was imported after us, must follow a second ``apply``.
        wrapper = standing or self._wrapper_of(current) or PatchedFunction(current)
        if standing is None:
            self._ledger.append(bind(owner, name, wrapper))
        if wrapper not in self._known:
            self._known.append(wrapper)
        self.active.append(wrapper)
        return True

    def _wrapper_of(self, stock: Any) -> PatchedFunction | None:
        return next((known for known in self._known if known.__wrapped__ is stock), None)

    def stack(self, replacements: Iterable[Replacement]) -> None:
        """Makes the wrappers act on these layers, the first one outermost."""
        replacements = tuple(replacements)
        for wrapper in self.active:
            wrapper._self_set_layers(replacements)

    def remember(self, rebinding: Rebinding) -> None:
        """Adds the rebinding of an alias to its ledger."""
        self._ledger.append(rebinding)

    def restore(self) -> list[str]:
        """Puts back what stood at every name. Returns the names that somebody else layered."""
        foreign = [layer for entry in reversed(self._ledger) if (layer := entry.restore())]
        current = find(*self._where)
        if not (foreign or self.lost or current is self.active[-1].__wrapped__):
            foreign = [f"{self.path}, now {current!r}"]
            self._foreign_layer = (current, self.active[-1])
        self._ledger = []
        self.active = []
        return foreign


class PatchPoints:
    """All sites of one package."""

    def __init__(self, order: Sequence[str]) -> None:
        self._order = order
        self._sites: dict[str, PatchPoint] = {}
        self._fresh: list[PatchPoint] = []

    def attach(self, patch_id: str, target: Target) -> str:
        """Adds a layer. It acts from the next :meth:`refresh` on.

        Returns:
          The path of the wrapped function, as ``module:qualname``.

        Raises:
          LookupError: the target is not there.
          TypeError: it is neither a function nor a method.
        """
        module = defining_module(target)
        if module is None:
            raise LookupError(f"no {target.qualname} in {' or '.join(target.modules)}")
        stock = find(module, target.qualname)
        # Of static methods ``__new__`` is never looked up on an instance, which would bind it.
        binds = isinstance(stock, (classmethod, staticmethod)) and target.name != "__new__"
        if binds or not (callable(stock) or target.name == "__new__"):
            raise TypeError(f"{module}:{target.qualname} is neither a function nor a method")
        site = PatchPoint(*_home(module, target.qualname))
        site = self._sites.setdefault(site.path, site)
        site.layers[patch_id] = target.replacement
        self._bind(site)
        return site.path

    def detach(self, patch_id: str) -> None:
        """Removes a patch's layers, from the next :meth:`refresh` on."""
        for site in self._sites.values():
            site.layers.pop(patch_id, None)

    def lost(self, patch_id: str) -> list[str]:
        """Paths of a patch's targets that no longer lead to it, after a reload say."""
        return [site.path for site in self._sites.values() if patch_id in site.layers and site.lost]

    def stack(self, suspended: Collection[str]) -> None:
        """Makes every wrapper act on its present layers, but for those of suspended patches."""
        for site in self._sites.values():
            site.stack(
                site.layers[patch_id]
                for patch_id in self._order
                if patch_id in site.layers and patch_id not in suspended
            )

    def refresh(self, suspended: Collection[str], *, sweep_within: str) -> tuple[bool, list[str]]:
        """Makes every wrapper act on its present layers, and binds or restores its names.

        Args:
          suspended: patches whose layers rest without leaving their place.
          sweep_within: the package to search for aliases; everywhere if empty.

        Returns:
          Whether a wrapper was put in place, and the names, left alone, on which somebody else put
          a layer.
        """
        for site in self._sites.values():
            if site.layers:
                self._bind(site)
        self.stack(suspended)
        fresh = [site for site in self._fresh if site.layers]
        if fresh:
            swaps = [(site.active[-1].__wrapped__, site.active[-1]) for site in fresh]
            by_wrapper = {id(site.active[-1]): site for site in fresh}
            for rebinding in rebind_aliases(swaps, sweep_within):
                by_wrapper[id(rebinding.wrapper)].remember(rebinding)
        self._fresh = []
        return bool(fresh), self._restore()

    def _bind(self, site: PatchPoint) -> None:
        if site.bind():
            self._fresh.append(site)

    def _restore(self) -> list[str]:
        leaving = [site for site in self._sites.values() if site.active and not site.layers]
        swaps = [(wrapper, wrapper.__wrapped__) for site in leaving for wrapper in site.active]
        foreign = [layer for site in leaving for layer in site.restore()]
        if swaps:  # Names that were copied while the wrapper stood there are in no ledger.
            rebind_aliases(swaps)
        return foreign


def _home(module: str, qualname: str) -> tuple[str, str]:
    """Where the function is defined: two patches may name it by different modules."""
    function = find(module, qualname)
    home = (str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", "")))
    there = find(*home)
    wrapper = patched_in(there)  # Put there by another patch, and aliases were not rebound yet.
    same = there is function or (wrapper is not None and wrapper.__wrapped__ is function)
    return home if same else (module, qualname)


def _was_reloaded(current: Any, wrapper: PatchedFunction) -> bool:
    stock = wrapper.__wrapped__
    return patched_in(current) is None and all(
        getattr(current, name, None) == getattr(stock, name, None)
        for name in ("__module__", "__qualname__")
    )
