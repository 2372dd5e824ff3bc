"""Print rows as they come, and at the end how many there are and how long they took."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Rows:
    """What was printed so far."""

    def __init__(self) -> None:
        self._printed, self._start = 0, time.monotonic()

    def show(self, lines: Sequence[str]) -> None:
        """Print the lines after those that were printed before."""
        for line in lines[self._printed :]:
            print(line, flush=True)
        self._printed = len(lines)

    def count(self, number: int, what: str) -> str:
        """Return a count, and the seconds since the start."""
        return (
            f"{number} {what}{'' if number == 1 else 's'} in {time.monotonic() - self._start:.0f} s"
        )
