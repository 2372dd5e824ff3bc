"""Count the calls that reach a patch: ``status()`` says which patches a program needs."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Thread(threading.local):
    paused = False


THREAD = _Thread()


class Tally:
    """What one patch did in this process. No lock: threads may lose a count now and then.

    Attributes:
      reached: calls that the patch took over from stock.
      in_half: whether one of them was a step of half-precision params.
    """

    def __init__(self) -> None:
        self.reached = 0
        self.in_half = False

    def reach(self, *, in_half: bool = False) -> None:
        """Count a call."""
        if not THREAD.paused:
            self.reached += 1
            self.in_half |= in_half


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Count nothing in this thread: the block traces a call that the program did not make."""
    before, THREAD.paused = THREAD.paused, True
    try:
        yield
    finally:
        THREAD.paused = before
