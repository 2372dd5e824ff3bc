"""The categories that users can filter on: ``OptaxDtypeFixWarning``, ``OptaxDtypeFixError``."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


class OptaxDtypeFixWarning(UserWarning):
    """Something that you asked for could not be done. What is not patched stays stock."""


class OptaxDtypeFixError(RuntimeError):
    """A setting is malformed or, in strict mode, something that you asked for could not be done.

    Also raised by ``Check.raise_if_broken`` and ``assert_same_on_all_processes``, and by
    ``import optax`` if packages or patches differ from those in ``OPTAX_DTYPEFIX_REQUIRE``.
    """


def warn_or_raise(message: str, *, strict: bool) -> None:
    """Warn that something could not be done, or raise in strict mode.

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
    """Attribute the warning to the user's line; no fixed ``stacklevel`` would reach it.

    Raises:
      Warning: the given one, if the user's filters turn it into an error.
    """
    frame = frame_of_the_user()
    warnings.warn_explicit(
        warning,
        type(warning),
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", "sys"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def summarize(error: Exception) -> str:
    """Return the type and first line of an error: JAX's errors go on for pages."""
    try:
        lines = str(error).splitlines()
    except Exception:  # Of the user's own class.
        lines = []
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def frame_of_the_user() -> FrameType:
    """Return the frame of the user's line that led here, often an ``import``.

    Without one, under ``python -m optax_dtypefix``, return the outermost frame: that of ``runpy``.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if package_of(frame) not in ("optax_dtypefix", "importlib", "contextlib", "runpy"):
            break
        frame = frame.f_back
    return frame


def package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
