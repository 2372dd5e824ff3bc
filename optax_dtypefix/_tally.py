"""Count the calls that reach a patch: ``status()`` says which patches a program needs."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Thread(threading.local):
    paused = False


_THREAD = _Thread()


class Tally:
    """What one patch did in this process. No lock: threads may lose a count now and then.

    Attributes:
      reached: calls that the patch took over from stock.
    """

    def __init__(self) -> None:
        self.reached = 0

    def reach(self) -> None:
        """Count a call."""
        if not _THREAD.paused:
            self.reached += 1

    def layer(self, replacement: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement, with its calls counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            if not _THREAD.paused:
                self.reached += 1
            return replacement(*args, **kwargs)

        return counted


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Count nothing in this thread: the block traces a call that the program did not make."""
    before, _THREAD.paused = _THREAD.paused, True
    try:
        yield
    finally:
        _THREAD.paused = before
