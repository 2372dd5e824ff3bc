"""The categories that users can filter on: ``OptaxDtypeFixWarning``, ``OptaxDtypeFixError``."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

CHECK_FAILED = 3
"""Exit code of ``check`` and ``scan`` if they have no verdict; the verdicts are 0, 1 and 2."""


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
    frame = _frame_of_the_user()
    warnings.warn_explicit(
        warning,
        type(warning),
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", "sys"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def raise_or_exit(error: OptaxDtypeFixError) -> NoReturn:
    """Raise while a program imports us; in our own command, print the message and exit.

    Raises:
      OptaxDtypeFixError: the given one.
      SystemExit: with 2, for wrong usage; ``check`` and ``scan`` exit with 3.
    """
    if not _imported_by_our_command():
        raise error
    if sys.stderr is not None:  # Closed, as in ``2>&-``: ``print`` would take stdout.
        print(f"optax-dtypefix: {error}", file=sys.stderr)
    raise SystemExit(CHECK_FAILED if sys.argv[1:2] in (["check"], ["scan"]) else 2)


def _imported_by_our_command() -> bool:
    script = os.path.basename(sys.argv[0]).partition(".")[0] == "optax-dtypefix"
    return script or _package_of(_frame_of_the_user()) == "runpy"  # ``python -m optax_dtypefix``.


def _frame_of_the_user() -> FrameType:
    """Return the frame of the user's line that led here, often an ``import``.

    Without one, under ``python -m optax_dtypefix``, return the outermost frame: that of ``runpy``.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if _package_of(frame) not in ("optax_dtypefix", "importlib", "contextlib", "runpy"):
            break
        frame = frame.f_back
    return frame


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
