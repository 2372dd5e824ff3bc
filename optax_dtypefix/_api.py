"""The public verbs, and the one engine behind them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from optax_dtypefix import patches
from optax_dtypefix._engine import Engine
from optax_dtypefix._environment import read_settings
from optax_dtypefix._errors import set_up_logging

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from optax_dtypefix._report import Report

_SETTINGS = read_settings(os.environ, patches.IDS)
_ENGINE = Engine("optax", patches.IDS, patches.load, _SETTINGS)


def status() -> Report:
    """What was applied, what was not, and why, for every patch.

    Returns:
      A :class:`Report`: iterate over it, or use ``str()``, ``as_dict()``, ``as_json()``.
    """
    return _ENGINE.status()


def is_applied(patch_id: str) -> bool:
    """Whether calls reach this patch right now.

    Raises:
      ValueError: there is no such patch; the message names the nearest id.
    """
    return _ENGINE.is_applied(patch_id)


def apply(*ids: str) -> None:
    """Applies the named patches now, or every patch that the settings want.

    Calling it again does nothing. An opt-in patch is applied when it is named. What a variable
    switched off stays off, with a warning if it is named here. Traces that JAX holds are dropped.

    Raises:
      ValueError: there is no such patch; the message names the nearest id.
      OptaxDtypeFixError: in strict mode, if something wanted could not be done.
    """
    _ENGINE.apply(*ids)


def revert(*ids: str) -> None:
    """Takes the named patches out, or all, and restores every name that was rebound.

    If somebody put a layer on top of a patch since, that layer stays, a warning names it, and the
    reverted patch below it passes calls through to the stock function.

    Raises:
      ValueError: there is no such patch; the message names the nearest id.
    """
    _ENGINE.revert(*ids)


def disabled(*ids: str) -> AbstractContextManager[None]:
    """Context manager: stock behaviour of the named patches, or of all, inside the block.

    It holds for the whole process, all threads included, and nests. Traces that JAX holds are
    dropped on the way in and out. A transformation that was built outside keeps the functions that
    it was built with.

    Raises:
      ValueError: on entry, there is no such patch; the message names the nearest id.
    """
    return _ENGINE.disabled(*ids)


set_up_logging(_SETTINGS.log_level)
_ENGINE.start()
