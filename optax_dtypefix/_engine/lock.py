"""The one lock of the engine and the import hook, which a fork waits for.

Then the thread that forks holds the lock, and frees it in the child too. Held by any other thread,
it would stay locked there: that thread does not exist in the child. The records are complete then.
"""

from __future__ import annotations

import os
import threading

LOCK = threading.RLock()
"""Import and probe nothing while you hold it; a thread may hold it more than once."""

if hasattr(os, "register_at_fork"):  # Windows cannot fork.
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )
