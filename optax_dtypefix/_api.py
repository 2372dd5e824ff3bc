"""The public verbs. The first one that needs the engine imports it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from ._engine.import_hook import after_import, put_back
from ._engine.lock import LOADING
from ._settings import Settings
from .patches import IDS

if TYPE_CHECKING:
    from ._diagnosis.report import Report
    from ._engine.engine import Engine
    from ._engine.verbs import StockBlock
    from ._record import Record

_Function = TypeVar("_Function", bound=Callable[..., Any])
_ENGINES: list[Engine] = []


def status() -> Report:
    """Report for every patch whether it was applied, and why.

    Returns:
      A report. Iterate over it, or call ``str()``, ``as_dict()`` or ``as_json()``.
    """
    return get_engine().status()


def is_applied(patch_id: str) -> bool:
    """Return whether calls reach this patch right now.

    Raises:
      ValueError: unknown patch id; the message names the nearest one.
    """
    chosen = _verbs().choose(get_engine(), (patch_id,))
    with LOADING:
        from ._diagnosis.report import decision_now

    return any(decision_now(get_engine(), i).state == "applied" for i in chosen)


def apply(*ids: str) -> None:
    """Apply the named patches now, or every patch that the settings want.

    This undoes ``revert``, and patches a module again after a reload. A patch that is already
    applied stays as it is. An opt-in patch is applied if it is named here or in the settings. A
    patch that an environment variable switched off stays off; if it is named here, a warning says
    so.

    All of JAX's compiled traces are dropped if one may hold a function that changes. A
    transformation that was built before keeps the functions that it was built with. The first call
    warns of such transformations, and names the functions that built them.

    Raises:
      ValueError: unknown patch id; the message names the nearest one.
      OptaxDtypeFixError: in strict mode, if a wanted patch could not be applied, or came too late
        for a transformation.
    """
    _verbs().apply(get_engine(), *ids)


def revert(*ids: str) -> None:
    """Remove the named patches, or all, and restore every name that was rebound.

    Other code may have wrapped a patched function in optax since. That wrapper stays and calls the
    stock function. If the wrapper has ``__wrapped__``, a warning names the wrapper: remove it, and
    call ``revert`` again to restore the name.

    Raises:
      ValueError: unknown patch id; the message names the nearest one.
      OptaxDtypeFixError: in strict mode, if such a wrapper stays. Everything else is reverted.
    """
    _verbs().revert(get_engine(), *ids)


def disabled(*ids: str) -> StockBlock:
    """Suspend the named patches, or all, inside a ``with`` block, or in a decorated function.

    The block has stock behaviour in all threads of the process. Blocks nest. All of JAX's compiled
    traces are dropped on entry and exit if a function of these patches was called before. A
    transformation that was built outside the block keeps the functions that it was built with.

    Raises:
      ValueError: on entry, unknown patch id; the message names the nearest one.
      TypeError: it decorates an ``async def`` or a generator. Use the block inside.
    """
    block: StockBlock = _verbs().disabled(get_engine(), *ids)
    return block


def original(function: _Function) -> _Function:
    """Return the stock function behind a patched one, or the function itself if it is not patched.

    A bound method returns the stock method, bound to the same instance. A ``functools.partial``
    returns a partial of the stock function.

    Raises:
      TypeError: it is no function, but the name of one, for example.
    """
    if not callable(function):
        raise TypeError(f"{function!r:.200} is not a function. Write original(optax.adam).")
    stock: _Function = _verbs().stock_of(function)
    return stock


def get_engine() -> Engine:
    """Return the one engine of this process. The first call imports all that patching needs."""
    put_back()
    with LOADING:
        if not _ENGINES:
            from ._engine.engine import Engine
            from .patches import load
            from .patches.catalogue import REMOVED
            from .patches.releases import TESTED

            if SETTINGS.log_level:
                from ._environment import set_up_logging

                set_up_logging(SETTINGS.log_level)
            _ENGINES.append(Engine("optax", IDS, load, SETTINGS, TESTED, REMOVED))
        return _ENGINES[0]


def _verbs() -> Any:
    put_back()
    with LOADING:
        from ._engine import verbs

    return verbs


def start() -> Record | None:
    """Patch optax when it is imported, and then keep the record if one is wanted.

    Not while this module is imported: strict mode may raise, and the engine must stay.
    """
    record = None
    if SETTINGS.report or SETTINGS.require or (SETTINGS.strict and SETTINGS.enabled):
        from ._record import Record

        record = Record(SETTINGS, status)  # First: if it cannot be read, nothing is patched.
    if SETTINGS.enabled:
        after_import("optax", lambda module: get_engine().on_import(module), strict=SETTINGS.strict)
    if record:
        after_import("optax", record.start)
    return record


# Read while ``import optax_dtypefix`` runs: a malformed variable must stop the program there, and
# later changes of ``os.environ`` must not give half of the program other settings.
if any(variable.startswith("OPTAX_") for variable in os.environ):
    from ._environment import read_own

    SETTINGS = read_own(IDS)
else:
    SETTINGS = Settings()
