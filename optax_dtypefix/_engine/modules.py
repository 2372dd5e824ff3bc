"""Say how far the import of a module is that is in ``sys.modules``, and watch for its end."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Callable

from .locate import loaded_module

if TYPE_CHECKING:
    from types import ModuleType


def is_imported(module: str) -> bool:
    """Return whether a module is imported. If another thread is importing it, wait for that.

    Not while this thread imports it. A lazy module is loaded by the question.
    """
    if is_being_imported(sys.modules.get(module)):
        try:
            importlib.import_module(module)
        except Exception:  # The import failed in the other thread.
            return False
    return loaded_module(module) is not None and not is_being_imported(sys.modules.get(module))


def is_being_imported(module: ModuleType | None) -> bool:
    """Return whether a module is being executed, in any thread."""
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


def watch(module: ModuleType, call_back: Callable[[str], None]) -> None:
    """Call back with the name of a module when its import ends; another loader executes it.

    A fork of optax may import us in its first line. Python sets the attribute at the end.
    """

    class WatchedSpec(ModuleSpec):
        @property
        def _initializing(self) -> bool:
            return True

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            try:
                call_back(self.name)
            except BaseException:
                sys.modules.pop(self.name, None)  # As if the module had raised.
                raise
            finally:
                self.__class__ = ModuleSpec  # type: ignore[assignment]
                self._initializing = value

    if type(module.__spec__) is ModuleSpec:
        module.__spec__.__class__ = WatchedSpec
