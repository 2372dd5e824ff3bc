"""Calls back after a module was imported, and imports nothing for it.

``wrapt.register_post_import_hook`` would do, but ``import wrapt`` (2.5) takes 45 ms and 139
modules, asyncio and ssl among them; all of ``import optax_dtypefix`` takes 5 ms without. jax brings
most of them too, but not to a process that never imports it: a loader of data, a launcher, a tool.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable

from .._errors import OptaxDtypeFixError, warn_or_raise
from .._text import summarize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_LOCK = threading.Lock()
_awaited: list[tuple[str, Callable[[Any], None], bool]] = []  # Module, hook, strict.
_busy: list[str] = []  # Modules that are being executed for us, or whose hooks are called.


def after_import(module: str, hook: Callable[[Any], None], *, strict: bool = False) -> None:
    """Calls ``hook(module)`` once: as soon as it is imported, at once if it is already.

    The module's own import is the caller of the hook: other threads wait until the hook is through.
    If the import fails, the hook is for the next attempt.

    Raises:
      OptaxDtypeFixError: by the hook; in strict mode, whatever the hook raises. Else that is told.
    """
    entry = (module, hook, strict)
    _busy.append(module)
    try:
        with _LOCK:
            if entry not in _awaited:
                _awaited.append(entry)
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
        if is_imported(module):
            _call_back(module)
    finally:
        _busy.remove(module)


def is_imported(module: str) -> bool:
    """Whether it is there. If another thread is just importing it, waits for the outcome."""
    if _is_being_imported(sys.modules.get(module)):
        try:
            importlib.import_module(module)
        except Exception:  # It failed there.
            return False
    return sys.modules.get(module) is not None  # None there blocks an import.


def _is_being_imported(module: ModuleType | None) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _warn_missed_imports() -> None:
    # Not called back here: a hook would import, amid the search for a module that it may need.
    for entry in list(_awaited):
        name, _, strict = entry
        module = sys.modules.get(name)
        # One that loads lazily has a class of its own, and would load if it were asked.
        there = type(module) is type(sys) and not _is_being_imported(module)
        if not there or name in _busy:
            continue
        _forget(entry)
        warn_or_raise(
            f"stock {name} stays in place: a finder that was put in front of ours has imported it. "
            f"Call optax_dtypefix.apply(), or import optax_dtypefix after that was done",
            strict=strict,
        )


def _forget(entry: tuple[str, Callable[[Any], None], bool]) -> None:
    with _LOCK:
        if entry in _awaited:
            _awaited.remove(entry)
        if not _awaited:
            # A new list: a search in another thread would skip a finder of this one.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not _FINDER]


def _call_back(name: str) -> None:
    module = sys.modules.get(name)
    if module is None:  # Executed by hand, aside: that is no import.
        return
    for entry in [entry for entry in _awaited if entry[0] == name]:
        _, hook, strict = entry
        try:
            hook(module)
        except OptaxDtypeFixError:
            raise
        except Exception as error:  # A fault of ours must not break the user's import.
            from .._logging import LOGGER

            LOGGER.debug("after the import of %s", name, exc_info=True)
            what = f"stock {name} stays in place, as patching it failed"
            warn_or_raise(f"{what}: {summarize(error)}", strict=strict)
        _forget(entry)


class _Finder:
    """Finds what is awaited with the finders that come after it.

    A finder that came later may stand in front and ask none but its own, as that of jaxtyping does.
    What it has imported is noticed, and told, with the next import of anything.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> Any:
        if not any(entry[0] == name for entry in _awaited):
            _warn_missed_imports()
            return None
        finders = list(sys.meta_path)
        if self in finders:
            del finders[: finders.index(self) + 1]
        for finder in finders:
            find_spec = getattr(finder, "find_spec", None)
            spec: Any = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                if spec.loader is not None:  # A namespace package may have none.
                    spec.loader = _Loader(spec)
                return spec
        return None


class _Loader:
    """Stands in for the loader of a module until it is loaded. Of the module it leaves no trace."""

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self._loader = spec.loader
        if hasattr(spec.loader, "exec_module"):  # Else ``load_module`` is asked, as in old times.
            self.exec_module = self._exec_module

    def __getattr__(self, name: str) -> Any:
        if "_loader" not in vars(self):  # Amid being copied.
            raise AttributeError(name)
        return getattr(self._loader, name)

    def _exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._execute(self._spec.name, lambda: self._loader.exec_module(module))

    def load_module(self, name: str) -> Any:
        self._spec.loader = self._loader
        self._execute(name, lambda: self._loader.load_module(name))
        return sys.modules[name]

    def _execute(self, name: str, execute: Callable[[], object]) -> None:
        # A lazy module, or one that is loaded by hand, is not marked as being imported meanwhile.
        _busy.append(name)
        try:
            execute()
            _call_back(name)
        finally:
            _busy.remove(name)


_FINDER: Any = _Finder()
