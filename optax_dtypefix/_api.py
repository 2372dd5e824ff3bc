"""The public verbs. The engine behind them is imported with the first that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from ._engine.import_hook import after_import, is_imported
from ._settings import SETTINGS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import ModuleType

    from ._engine.engine import Engine
    from ._engine.report import Report


def status() -> Report:
    """What was applied, what was not, and why, for every patch.

    Returns:
      A :class:`Report`: iterate over it, or use ``str()``, ``as_dict()``, ``as_json()``.
    """
    return _engine().status()


def is_applied(patch_id: str) -> bool:
    """Whether calls reach this patch right now.

    Raises:
      ValueError: there is no such patch; the message names the nearest id.
    """
    return _engine().is_applied(patch_id)


def apply(*ids: str) -> None:
    """Applies the named patches now, or every patch that the settings want.

    Calling it again does nothing. An opt-in patch is applied when it is named. What a variable
    switched off stays off, with a warning if it is named here. Traces that JAX holds are dropped.

    Raises:
      ValueError: there is no such patch; the message names the nearest id.
      OptaxDtypeFixError: in strict mode, if something wanted could not be done.
    """
    _engine().apply(*ids)


def revert(*ids: str) -> None:
    """Takes the named patches out, or all, and restores every name that was rebound.

    If somebody put a layer on top of a patch since, that layer stays, a warning names it, and the
    reverted patch below it passes calls through to the stock function.

    Raises:
      ValueError: there is no such patch; the message names the nearest id.
      OptaxDtypeFixError: in strict mode, if such a layer stays. All else is reverted by then.
    """
    _engine().revert(*ids)


def disabled(*ids: str) -> AbstractContextManager[None]:
    """Context manager: stock behaviour of the named patches, or of all, inside the block.

    It holds for the whole process, all threads included, and nests. Traces that JAX holds are
    dropped on the way in and out. A transformation that was built outside keeps the functions that
    it was built with.

    Raises:
      ValueError: on entry, there is no such patch; the message names the nearest id.
    """
    return _engine().disabled(*ids)


def original(function: Callable[..., Any]) -> Callable[..., Any]:
    """The stock function behind a patched one; a function that is not patched comes back as it is.

    Bound methods come back bound to the same instance, and a ``functools.partial`` of a patched
    function as a partial of the stock one.
    """
    from ._engine.wrapper import stock_of

    return stock_of(function)


def _engine() -> Engine:
    from ._optax import ENGINE

    return ENGINE


def _on_import(optax: ModuleType) -> None:
    _engine().on_import(optax)


if SETTINGS.enabled:
    if is_imported("optax"):
        _engine().start()
    else:
        after_import("optax", _on_import, strict=SETTINGS.strict)
