"""The two categories a user can filter on: ``OptaxDtypeFixWarning`` and ``OptaxDtypeFixError``."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


class OptaxDtypeFixWarning(UserWarning):
    """Something that was wanted could not be done; stock optax stays in place there."""


class OptaxDtypeFixError(RuntimeError):
    """A malformed setting, or, in strict mode, something wanted that could not be done."""


def warn_or_raise(message: str, *, strict: bool) -> None:
    """Says that something wanted could not be done.

    Raises:
      OptaxDtypeFixError: in strict mode.
    """
    if strict:
        raise OptaxDtypeFixError(message)
    try:
        warn_the_user(OptaxDtypeFixWarning(message))
    except OptaxDtypeFixWarning:
        # Under ``-W error`` the exception would break the user's ``import optax``, which only
        # strict mode may do.
        from ._logging import LOGGER

        LOGGER.warning(message)


def warn_the_user(warning: Warning) -> None:
    """Warns of the line of the user that brought us here: a ``stacklevel`` cannot be told.

    Raises:
      Warning: this one, where the user's filters make an error of it.
    """
    frame = _frame_of_the_user()
    warnings.warn_explicit(
        warning,
        type(warning),
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", "sys"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _frame_of_the_user() -> FrameType:
    """Whose line brought us here, often an ``import``."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in ("optax_dtypefix", "importlib", "contextlib"):
            break
        frame = frame.f_back
    return frame
