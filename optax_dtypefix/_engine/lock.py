"""The locks that a fork waits for: of the engine and the import hook, and of late imports.

Then the thread that forks holds them, and frees them in the child too. Held by any other thread, a
lock would stay locked there: that thread does not exist in the child. The records are complete
then, and no module is half imported.
"""

from __future__ import annotations

import os
import threading

LOCK = threading.RLock()
"""Import and probe nothing while you hold it; a thread may hold it more than once."""

LOADING = threading.RLock()
"""Hold it to import the file of a patch while the program runs; take no other lock meanwhile."""

if hasattr(os, "register_at_fork"):  # Windows cannot fork.
    for _lock in (LOCK, LOADING):
        os.register_at_fork(
            before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
        )
