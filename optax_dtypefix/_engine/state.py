"""Name the states of a patch."""

from __future__ import annotations

import enum


class State(str, enum.Enum):
    """The closed set of states of a patch."""

    PENDING = "pending"
    APPLIED = "applied"
    NOT_NEEDED = "not-needed"
    DISABLED = "disabled"
    UNSUPPORTED = "unsupported"
    MISSING = "missing"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value
