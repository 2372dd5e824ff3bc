"""Know our own command before it can run, and how it ends where a setting is malformed."""

from __future__ import annotations

import os
import sys

from .._errors import CHECK_FAILED, OptaxDtypeFixError, frame_of_the_user, package_of


def is_command() -> bool:
    """Check whether our own command imports the package, and no program."""
    script = os.path.basename(sys.argv[0]).partition(".")[0] == "optax-dtypefix"
    return script or package_of(frame_of_the_user()) == "runpy"  # ``python -m optax_dtypefix``.


def exit_of_command(error: OptaxDtypeFixError) -> SystemExit | None:
    """Print the error if our own command imports the package; a program gets the error.

    Returns:
      How the command ends: with 2, for wrong usage; ``check`` and ``scan`` with 3.
    """
    if not is_command():
        return None
    if sys.stderr is not None:  # Closed, as in ``2>&-``: ``print`` would take stdout.
        print(f"optax-dtypefix: {error}", file=sys.stderr)
    return SystemExit(CHECK_FAILED if sys.argv[1:2] in (["check"], ["scan"]) else 2)
