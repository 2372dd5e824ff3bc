"""The two categories a user can filter on: ``OptaxDtypeFixWarning`` and ``OptaxDtypeFixError``."""

from __future__ import annotations

import logging
import warnings

LOGGER = logging.getLogger("optax_dtypefix")


class OptaxDtypeFixWarning(UserWarning):
    """Something that was wanted could not be done; stock optax stays in place there."""


class OptaxDtypeFixError(RuntimeError):
    """A malformed setting, or, in strict mode, something wanted that could not be done."""


def complain(message: str, *, strict: bool) -> None:
    """Says that something wanted could not be done.

    Raises:
      OptaxDtypeFixError: in strict mode.
    """
    if strict:
        raise OptaxDtypeFixError(message)
    try:
        warnings.warn(message, OptaxDtypeFixWarning, stacklevel=3)
    except OptaxDtypeFixWarning:
        # Under ``-W error`` the exception would break the user's ``import optax``, which only
        # strict mode may do.
        LOGGER.warning(message)


def set_up_logging(level: int) -> None:
    """Sets the level; below warning, also shows the messages, since someone asked to see them."""
    LOGGER.setLevel(level)
    if level < logging.WARNING and not LOGGER.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        LOGGER.addHandler(handler)
        LOGGER.propagate = False
