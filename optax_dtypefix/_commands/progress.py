"""Show how far a command is, on a terminal."""

from __future__ import annotations

import sys


def show_progress(done: int, total: int) -> None:
    """Write the numbers of finished and of all items over those of before."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done} of {total}", end=end, file=sys.stderr, flush=True)
