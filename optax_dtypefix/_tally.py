"""Count the calls that reach a patch: ``status()`` says which patches a program needs.

Calls of the engine itself do not count, and probes do not even reach a patch.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Thread(threading.local):
    paused = stock_only = False


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
def paused(*, stock_only: bool = False) -> Iterator[None]:
    """Count nothing in this thread: the block traces a call that the program did not make.

    Args:
      stock_only: whether the block calls stock functions: a probe must not see patches.
    """
    before = THREAD.paused, THREAD.stock_only
    THREAD.paused, THREAD.stock_only = True, stock_only or THREAD.stock_only
    try:
        yield
    finally:
        THREAD.paused, THREAD.stock_only = before
