"""Where the wrappers stand: one site a target, its layers, and the ledger of its rebindings."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from typing import TYPE_CHECKING, Any

from optax_dtypefix._rebinding import Rebinding, bind, rebind_aliases
from optax_dtypefix._wrapper import PatchedFunction, patched_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from optax_dtypefix._patch import Replacement, Target


class Site:
    """A module or class attribute that patches share, each as a layer of one wrapper."""

    def __init__(self, owner: Any, name: str, path: str) -> None:
        self.path = path
        self.layers: dict[str, Replacement] = {}
        self._owner = owner
        self._name = name
        self._ledger: list[Rebinding] = []
        self._active = False
        self.wrapper = self._new_wrapper()

    @property
    def bound(self) -> bool:
        """Whether callers reach the wrapper, possibly through somebody's layer on top.

        False again if the module was reloaded and the function defined anew.
        """
        return self._active and patched_in(self._current) is self.wrapper

    @property
    def _current(self) -> Any:
        return vars(self._owner).get(self._name)

    def _new_wrapper(self) -> PatchedFunction:
        return patched_in(self._current) or PatchedFunction(self._current)

    def bind(self) -> None:
        """Puts the wrapper in place, unless it still stands there below somebody's layer."""
        self.wrapper = self._new_wrapper()
        self._active = True
        if patched_in(self._current) is not self.wrapper:
            self._ledger = [bind(self._owner, self._name, self.wrapper)]

    def remember(self, rebindings: Iterable[Rebinding]) -> None:
        """Adds the rebindings of this site's aliases to its ledger."""
        self._ledger += [entry for entry in rebindings if _concerns(entry, self.wrapper)]

    def restore(self) -> list[str]:
        """Puts back what stood at every name. Returns the names that somebody else layered."""
        foreign = [layer for entry in reversed(self._ledger) if (layer := entry.restore())]
        self._ledger = []
        self._active = False
        return foreign


class Sites:
    """All sites of one package."""

    def __init__(self, package: str, order: Sequence[str]) -> None:
        self._package = package
        self._order = order
        self._sites: dict[tuple[str, str], Site] = {}

    def attach(self, patch_id: str, target: Target) -> str:
        """Adds a layer. It acts from the next :meth:`refresh` on.

        Returns:
          The path of the wrapped function, as ``module:qualname``.

        Raises:
          LookupError: the target is not there.
        """
        module = defining_module(target)
        if module is None:
            raise LookupError(f"no {target.qualname} in {' or '.join(target.modules)}")
        key = (module, target.qualname)
        if key not in self._sites:
            owner, name = _owner_of(module, target.qualname)
            self._sites[key] = Site(owner, name, ":".join(key))
        self._sites[key].layers[patch_id] = target.replacement
        return self._sites[key].path

    def detach(self, patch_id: str) -> None:
        """Removes a patch's layers, from the next :meth:`refresh` on."""
        for site in self._sites.values():
            site.layers.pop(patch_id, None)

    def refresh(self, suspended: Collection[str], *, sweep_within: str) -> list[str]:
        """Makes every wrapper act on its present layers, and binds or restores its names.

        Args:
          suspended: patches whose layers rest without leaving their place.
          sweep_within: the package to search for aliases; everywhere if empty.

        Returns:
          The names, left alone, on which somebody else put a layer.
        """
        foreign: list[str] = []
        fresh: list[Site] = []
        for site in self._sites.values():
            if site.layers and not site.bound:
                site.bind()
                fresh.append(site)
            site.wrapper._self_set_layers(
                site.layers[patch_id]
                for patch_id in self._order
                if patch_id in site.layers and patch_id not in suspended
            )
            if not site.layers:
                foreign += site.restore()
        if fresh:
            aliases = rebind_aliases([site.wrapper for site in fresh], sweep_within)
            for site in fresh:
                site.remember(aliases)
        return foreign


def defining_module(target: Target) -> str | None:
    """The first of a target's modules that is loaded and has it."""
    for module in target.modules:
        owner, name = _owner_of(module, target.qualname)
        if owner is not None and name in vars(owner):
            return module
    return None


def unloaded_module(target: Target) -> str | None:
    """A module of the target that exists but was not imported yet."""
    for module in target.modules:
        parent = module.rpartition(".")[0]
        if module in sys.modules or parent not in sys.modules:
            continue
        if importlib.util.find_spec(module) is not None:
            return module
    return None


def unknown_parameters(target: Target) -> list[str]:
    """Parameters of the installed function that the replacement does not understand."""
    module = defining_module(target)
    if target.knows is None or module is None:
        return []
    owner, name = _owner_of(module, target.qualname)
    return [p for p in inspect.signature(vars(owner)[name]).parameters if p not in target.knows]


def _owner_of(module: str, qualname: str) -> tuple[Any, str]:
    owner: Any = sys.modules.get(module)
    *path, name = qualname.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    return owner, name


def _concerns(entry: Rebinding, wrapper: PatchedFunction) -> bool:
    return entry.after is wrapper or getattr(entry.after, "func", None) is wrapper
