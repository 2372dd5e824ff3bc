"""Post-import hooks that import nothing themselves.

``wrapt.register_post_import_hook`` would do the same, but ``import wrapt`` (2.5) takes 45 ms and
loads 139 modules, asyncio and ssl among them; without wrapt, ``import optax_dtypefix`` takes 5 ms.
jax loads most of these modules too, but some processes never import jax: data loaders, launchers,
tools.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable

from .._errors import OptaxDtypeFixError, summarize, warn_or_raise
from .lock import LOCK

if TYPE_CHECKING:
    from types import ModuleType


# What is called after an import of a module, and whether errors are raised. Of each, the modules
# that it was called with: a program may import a package twice.
_hooks: dict[tuple[str, Callable[[Any], None], bool], list[Any]] = {}
_in_progress: list[str] = []  # Modules that our loader is executing, or that a hook is added to.
_OWN = sys.modules[__name__]
_PACKAGE = sys.modules[__name__.partition(".")[0]]


def after_import(module: str, hook: Callable[[Any], None], *, strict: bool = False) -> None:
    """Call ``hook(module)`` after each import of the module, and now if it is imported already.

    A program may drop a module from ``sys.modules`` and import it again. The import calls the hook,
    so other threads that import the module wait until the hook returns. If the import fails, the
    hook waits for the next attempt.

    Raises:
      OptaxDtypeFixError: raised by the hook. In strict mode, any other exception of the hook is
        raised as one; else it becomes a warning.
    """
    _in_progress.append(module)
    try:
        _hooks.setdefault((module, hook, strict), [])
        with LOCK:
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
        if is_imported(module):
            _call_back(module)
    finally:
        _in_progress.remove(module)


def is_imported(module: str) -> bool:
    """Return whether a module is imported. If another thread is importing it, wait for that.

    Not while this thread imports it. A lazy module is loaded by the question.
    """
    if is_being_imported(sys.modules.get(module)):
        with contextlib.suppress(Exception):  # The import failed in the other thread.
            importlib.import_module(module)
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


def _warn_missed_imports() -> None:
    # Call no hook here: a hook imports, and this runs inside the search for another module.
    for (name, _, strict), served in _hooks.copy().items():
        module = sys.modules.get(name)
        # A lazy module has a class of its own, and attribute access would load it.
        if type(module) is not type(sys) or module in served or name in _in_progress:
            continue
        if getattr(module, "__spec__", None) is not None and not is_being_imported(module):
            served.append(module)  # It is no stub.
            warn_or_raise(
                f"{name} is not patched: another import hook, installed after optax_dtypefix, "
                f"loaded it. Call optax_dtypefix.apply(), or install that hook first.",
                strict=strict,
            )


def _call_back(name: str) -> None:
    module = sys.modules.get(name)
    for (awaited, hook, strict), served in _hooks.copy().items():
        # None: executed by hand and not in sys.modules, which is no import.
        if awaited != name or module is None or module in served:
            continue
        served.append(module)  # First: what the hook imports must not find it missed.
        try:
            hook(module)
        except OptaxDtypeFixError:
            raise
        except Exception as error:  # A bug of ours must not break the user's import.
            from .._logging import LOGGER

            LOGGER.debug("after the import of %s", name, exc_info=True)
            warn_or_raise(
                f"Could not patch {name}: {summarize(error)}. Set OPTAX_DTYPEFIX_LOG=debug to log "
                f"the traceback.",
                strict=strict,
            )


class _Finder:
    """Find awaited modules with all other finders.

    It stays in ``sys.meta_path``: to remove it in place would make a search in another thread skip
    a finder, and a new list would lose a finder that another thread inserts meanwhile.

    A finder that is installed later comes first, and may bypass this one, as jaxtyping's does.
    The next import of any module then notices what that finder loaded, and warns.
    """

    def __init__(self) -> None:
        self._searches: set[tuple[int, str]] = set()

    def find_spec(self, name: str, *_: Any, **__: Any) -> Any:
        if sys.modules.get(__name__, _OWN) is not _OWN:  # The program imported us again.
            return None
        if name not in {module for module, *_ in _hooks.copy()}:
            _warn_missed_imports()
            return None
        search = threading.get_ident(), name
        if name in sys.modules or search in self._searches:  # A reload, or our own question.
            return None
        from importlib.util import find_spec

        self._searches.add(search)
        try:
            spec: Any = find_spec(name)
        finally:
            self._searches.remove(search)
        if spec is not None and hasattr(spec.loader, "exec_module"):  # A namespace has no loader.
            spec.loader = _Loader(spec)
        return spec


class _Loader:
    """Replace the loader of a module until the module is loaded, and leave no trace in it."""

    _loader: Any = None  # While being copied.

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self._loader = spec.loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        # Python does not mark lazy modules, or those loaded by hand, as being imported.
        _in_progress.append(self._spec.name)
        try:
            self._loader.exec_module(module)
            _call_back(self._spec.name)
        finally:
            _in_progress.remove(self._spec.name)


_FINDER: Any = _Finder()


def put_back(package: ModuleType | None = None) -> None:
    """Put those of our modules back that the program dropped from ``sys.modules``.

    ``mock.patch.dict("sys.modules")`` drops what was imported inside. A second copy of a module
    would know nothing of the patches that are applied.
    """
    package = package or _PACKAGE
    for name, module in list(vars(package).items()):
        path = f"{package.__name__}.{name}"
        is_part = type(module) is type(sys) and module.__name__ == path
        if is_part and sys.modules.setdefault(path, module) is module:
            put_back(module)
