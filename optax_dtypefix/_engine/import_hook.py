"""Post-import hooks that import nothing themselves.

``wrapt.register_post_import_hook`` would do the same, but ``import wrapt`` (2.5) takes 45 ms and
loads 139 modules, asyncio and ssl among them; without wrapt, ``import optax_dtypefix`` takes 5 ms.
jax loads most of these modules too, but some processes never import jax: data loaders, launchers,
tools.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable

from .._errors import OptaxDtypeFixError, summarize, warn_or_raise
from .lock import LOCK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from .._settings import Settings

_awaited: dict[tuple[str, Callable[[Any], None]], bool] = {}  # Module and hook: strict.
_busy: list[str] = []  # Modules that our loader is executing, or whose hooks are running.


def patch_when_imported(package: str, engine: Callable[[], Any], settings: Settings) -> None:
    """Patch a package now if it is imported, else as soon as it is. Get the engine only then."""
    if settings.enabled:
        strict = settings.strict
        after_import(package, lambda module: engine().on_import(module), strict=strict)


def after_import(module: str, hook: Callable[[Any], None], *, strict: bool = False) -> None:
    """Call ``hook(module)`` once: after the import of the module, now if it is imported already.

    The import of the module calls the hook, so other threads that import the module wait until the
    hook returns. If the import fails, the hook waits for the next attempt.

    Raises:
      OptaxDtypeFixError: raised by the hook. In strict mode, any other exception of the hook is
        raised as one; else it becomes a warning.
    """
    _busy.append(module)
    try:
        _awaited[module, hook] = strict
        with LOCK:
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
        if module in sys.modules:
            if is_imported(module):
                try:
                    _call_back(module)
                finally:  # If the hook raised, no import will call it again.
                    _awaited.pop((module, hook), None)
            elif is_being_imported(sys.modules.get(module)):  # By this thread.
                _watch(sys.modules[module])
    finally:
        _busy.remove(module)


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


def loaded_module(name: str) -> ModuleType | None:
    """Return a module, also while it is being imported.

    A mock in its place, or None, which blocks the import, has no name and is no module.
    """
    module = sys.modules.get(name)
    return module if isinstance(getattr(module, "__name__", None), str) else None


def is_being_imported(module: ModuleType | None) -> bool:
    """Return whether a module is being executed, in any thread."""
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


def _watch(module: ModuleType) -> None:
    """Call back with the name of a module when its import ends; another loader executes it.

    A fork of optax may import us in its first line. Python sets the attribute at the end.
    """
    from importlib.machinery import ModuleSpec  # Loaded by the import that runs.

    class WatchedSpec(ModuleSpec):
        @property
        def _initializing(self) -> bool:
            return True

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            try:
                _call_back(self.name)
            except BaseException:
                sys.modules.pop(self.name, None)  # As if the module had raised.
                raise
            finally:
                self.__class__ = ModuleSpec  # type: ignore[assignment]
                self._initializing = value

    if type(module.__spec__) is ModuleSpec:
        module.__spec__.__class__ = WatchedSpec


def _warn_missed_imports() -> None:
    # Call no hook here: a hook imports, and this runs inside the search for another module.
    for (name, hook), strict in _awaited.copy().items():
        module = sys.modules.get(name)
        # A lazy module has a class of its own, and attribute access would load it.
        if name in _busy or type(module) is not type(sys) or is_being_imported(module):
            continue
        _awaited.pop((name, hook), None)
        warn_or_raise(
            f"{name} is not patched: another import hook, installed after optax_dtypefix, loaded "
            f"it. Call optax_dtypefix.apply(), or install that hook first.",
            strict=strict,
        )


def _call_back(name: str) -> None:
    module = sys.modules.get(name)
    if module is None:  # Executed by hand and not in sys.modules: this is no import.
        return
    for (awaited, hook), strict in _awaited.copy().items():
        if awaited != name:
            continue
        try:
            hook(module)
        except OptaxDtypeFixError:
            raise
        except Exception as error:  # A bug of ours must not break the user's import.
            from .._logging import LOGGER

            LOGGER.debug("after the import of %s", name, exc_info=True)
            advice = "Set OPTAX_DTYPEFIX_LOG=debug to log the traceback."
            warn_or_raise(f"Could not patch {name}: {summarize(error)}. {advice}", strict=strict)
        _awaited.pop((name, hook), None)


class _Finder:
    """Find awaited modules with the finders that come after this one.

    It stays in ``sys.meta_path``: to remove it in place would make a search in another thread skip
    a finder, and a new list would lose a finder that another thread inserts meanwhile.

    A finder that is installed later comes first, and may bypass this one, as jaxtyping's does.
    The next import of any module then notices what that finder loaded, and warns.
    """

    def __init__(self) -> None:
        self._searches: set[tuple[int, str]] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> Any:
        awaited = {module for module, _ in _awaited.copy()}
        if name not in awaited:
            if not sys.modules.keys().isdisjoint(awaited):  # Not so for nearly all imports.
                _warn_missed_imports()
            return None
        search = threading.get_ident(), name
        if search in self._searches:  # A finder that asks all finders asks us again.
            return None
        self._searches.add(search)
        try:
            return self._find(name, path, target)
        finally:
            self._searches.remove(search)

    def _find(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> Any:
        finders = list(sys.meta_path)
        if self in finders:
            del finders[: finders.index(self) + 1]
        for finder in finders:
            find_spec = getattr(finder, "find_spec", None)
            spec: Any = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):  # A namespace package may have no loader.
                    spec.loader = _Loader(spec)
                return spec
        return None


class _Loader:
    """Replace the loader of a module until the module is loaded, and leave no trace in it."""

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self._loader = spec.loader

    def __getattr__(self, name: str) -> Any:
        if "_loader" not in vars(self):  # While being copied.
            raise AttributeError(name)
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        # Python does not mark lazy modules, or those loaded by hand, as being imported.
        _busy.append(self._spec.name)
        try:
            self._loader.exec_module(module)
            _call_back(self._spec.name)
        finally:
            _busy.remove(self._spec.name)


_FINDER: Any = _Finder()
