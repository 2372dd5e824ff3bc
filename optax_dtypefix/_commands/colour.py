"""Colour the cells of tables where the terminal wants it."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_RED, _GREEN, _YELLOW = "31", "32", "33"
_COLOURS = {
    **dict.fromkeys(("applied", "fixed"), _GREEN),
    **dict.fromkeys(("pending", "disabled", "opt-in"), _YELLOW),
    **dict.fromkeys(("failed", "unsupported", "still fails", "not shown"), _RED),
}


def painter() -> Callable[[str], str]:
    """Return the function that colours a cell on stdout: states, verdicts and counts of faults."""
    return _paint if _wanted() else str


def _wanted() -> bool:
    """Follow NO_COLOR and FORCE_COLOR, in the order in which Python does."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and sys.platform != "win32"


def _paint(cell: str) -> str:
    text = cell.rstrip()
    colour = _COLOURS.get(text)
    count = re.match(r"(\d+)/(\d+) fixed", text)
    if count is not None:
        colour = _GREEN if count[1] == count[2] else _YELLOW
        if "still fail" in text or "not shown" in text:
            colour = _RED
    return f"\033[{colour}m{text}\033[0m{cell[len(text) :]}" if colour else cell
