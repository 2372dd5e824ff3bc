"""Count the calls that reach a patch, and what it changes.

A patch has one :class:`Tally`. It is open, in this thread, while a replacement of the patch runs.
Code that differs from stock calls :func:`count`, which adds to the innermost open tally. It need
not know the patch, nor that there are any. A function that a replacement builds runs later, and has
to open the tally again: see :func:`counting`, and ``patches/_support/rebuild.py``.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, Callable, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_F = TypeVar("_F", bound=Callable[..., Any])


class Tally:
    """What one patch did in this process. No lock: threads may lose a count now and then.

    Attributes:
      reached: calls of patched functions.
      changed: what the patch did otherwise than stock, by kind, with the number of times.
    """

    def __init__(self) -> None:
        self.reached = 0
        self.changed: dict[str, int] = {}

    def __enter__(self) -> None:
        THREAD.open.append(self)

    def __exit__(self, *_: object) -> None:
        THREAD.open.pop()

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function with this tally open."""
        opened = THREAD.open
        opened.append(self)
        try:
            return function(*args, **kwargs)
        finally:
            opened.pop()

    def reach(self) -> None:
        """Count a call that reaches the patch."""
        if not THREAD.paused:
            self.reached += 1

    def layer(self, replacement: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement, with its calls counted and this tally open while it runs."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            if not THREAD.paused:
                self.reached += 1
            opened = THREAD.open
            opened.append(self)
            try:  # As in ``run``: one call less in each eager step.
                return replacement(*args, **kwargs)
            finally:
                opened.pop()

        return counted


NO_PATCH = Tally()
"""Open where no patch runs. Nobody reads it."""


class _Thread(threading.local):
    paused = False

    def __init__(self) -> None:
        self.open = [NO_PATCH]


THREAD = _Thread()


def current() -> Tally:
    """Return the innermost open tally of this thread."""
    return THREAD.open[-1]


def count(kind: str, times: int = 1) -> None:
    """Count something that stock does not do, for the patch that runs."""
    if times and not THREAD.paused:
        changed = THREAD.open[-1].changed
        changed[kind] = changed.get(kind, 0) + times


def counting(function: _F) -> _F:
    """Let a callback that a patch hands to stock count for that patch: it may run another."""
    counted = functools.partial(current().run, function)
    return functools.update_wrapper(counted, function)  # type: ignore[return-value]


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Count nothing in this thread: the block traces a call that the program did not make."""
    before, THREAD.paused = THREAD.paused, True
    try:
        yield
    finally:
        THREAD.paused = before
