"""Name the states of a patch."""

from __future__ import annotations

import enum

NOT_IMPORTED = "is not imported yet"
"""How the reason ends of a patch that waits for its module."""


class State(str, enum.Enum):
    """The states of a patch, as text.

    Attributes:
      PENDING: optax, or a part of optax, is not imported yet, or its import missed the hook.
      APPLIED: calls reach the patch.
      NOT_NEEDED: the installed optax has none of the faults of the patch.
      DISABLED: a setting or the program switched the patch off, or nobody enabled an opt-in patch.
      UNSUPPORTED: the patch does not fit this untested release.
      MISSING: the installed optax lacks a function that the patch replaces.
      FAILED: the patch raised an error, or a reload removed the patch.
    """

    PENDING = "pending"
    APPLIED = "applied"
    NOT_NEEDED = "not-needed"
    DISABLED = "disabled"
    UNSUPPORTED = "unsupported"
    MISSING = "missing"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value
