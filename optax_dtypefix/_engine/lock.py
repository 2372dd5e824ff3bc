"""The one lock of the engine and the import hook. A fork waits for it, and renews it in the child.

The thread that holds it may not exist in the child, where nothing would ever free it. A fork that
waits also finds the records complete.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.RLock()


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock. Import and probe nothing meanwhile; a thread may hold it more than once."""
    with _lock:  # Of this process: a child that was forked inside the block frees its own.
        yield


def _acquire() -> None:
    _lock.acquire()


def _release() -> None:
    _lock.release()


def _renew() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # Windows cannot fork.
    os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_renew)
