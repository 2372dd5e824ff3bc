"""The record: what was applied, what was not, and why."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@dataclasses.dataclass(frozen=True)
class PatchStatus:
    """State of one patch.

    Attributes:
      id: the patch.
      state: one of ``pending``, ``applied``, ``not-needed``, ``disabled``, ``unsupported``,
        ``missing``, ``failed``.
      reason: why, in words.
      targets: the wrapped functions, as ``module:qualname``; empty unless applied.
      upstream: links of the upstream issues.
    """

    id: str
    state: State
    reason: str
    targets: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The same as plain strings and lists."""
        return {
            "id": self.id,
            "state": self.state.value,
            "reason": self.reason,
            "targets": list(self.targets),
            "upstream": list(self.upstream),
        }


@dataclasses.dataclass(frozen=True)
class Report:
    """State of every patch, and the versions that it holds for. Iterates over ``PatchStatus``."""

    optax_version: str
    jax_version: str
    patches: tuple[PatchStatus, ...]
    optax_location: str = ""

    def __iter__(self) -> Iterator[PatchStatus]:
        return iter(self.patches)

    def __len__(self) -> int:
        return len(self.patches)

    def __getitem__(self, patch_id: str) -> PatchStatus:
        for patch in self.patches:
            if patch.id == patch_id:
                return patch
        raise KeyError(patch_id)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain dicts, lists and strings."""
        return {
            "optax_version": self.optax_version,
            "jax_version": self.jax_version,
            "optax_location": self.optax_location,
            "patches": [patch.as_dict() for patch in self.patches],
        }

    def as_json(self) -> str:
        """The report as JSON text."""
        import json  # Here only: kept out of the import.

        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        place = f" in {self.optax_location}" if self.optax_location else ""
        heading = f"optax {self.optax_version}{place}, jax {self.jax_version}"
        rows: list[tuple[str, ...]] = [("patch", "state", "reason")]
        rows += [(patch.id, patch.state.value, patch.reason) for patch in self.patches]
        return "\n".join([heading, "", *table(rows)])


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a table with aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rule = tuple("-" * width for width in widths)
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for row in (rows[0], rule, *rows[1:])
    ]
