"""Name the states of a patch, and say why it is in one."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .locate import Place
    from .patch import Fault
    from .when_called import WhenCalled

NOT_IMPORTED = "is not imported yet"
"""How the reason ends of a patch that waits for its module."""


NOT_OPTED_IN = "opt-in: add it to OPTAX_DTYPEFIX_ENABLE"


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


class Decision(NamedTuple):
    """What to do with a patch, and why.

    Attributes:
      state: the state of the patch.
      reason: why, as text.
      layers: what to call in place of stock functions; none unless the patch is applied.
      waits_for: modules to wait for; when one of them is imported, decide again, or wrap those
        targets that it brings.
      warn: whether to warn the user, who wanted a patch that cannot be applied.
      probed: the faults whose abstract reproducers led to the decision. Once the patch is applied,
        the reproducers must find nothing.
    """

    state: State
    reason: str
    layers: Mapping[Place, WhenCalled] = {}
    waits_for: tuple[str, ...] = ()
    warn: bool = False
    probed: tuple[Fault, ...] = ()


UNDECIDED = Decision(State.PENDING, "")
REVERTED = Decision(State.DISABLED, "reverted by the program")
