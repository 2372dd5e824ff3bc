"""Report which patches were applied, which were not, and why."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

from .._text import suggest, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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
    """State of one patch. ``==`` ignores ``reached`` and ``changed``.

    Attributes:
      id: the patch.
      state: one of ``pending``, ``applied``, ``not-needed``, ``disabled``, ``unsupported``,
        ``missing``, ``failed``.
      reason: why, as text.
      targets: the wrapped functions, as ``module:qualname``; empty unless applied.
      upstream: links of the upstream issues.
      fixed_in: the first release of optax that does not need the patch; empty if there is none yet.
      opt_in: whether the patch must be enabled by name.
      reached: how often this process called a function that the patch replaces: while it built,
        traced, or took eager steps. A compiled step calls none.
      changed: what the patch did otherwise than stock, by kind, with the number of times: casts, as
        in ``{"float16 to float32": 4}``, and other changes, in words. Empty if the patch was
        reached, and stock was right. Where that depends on numbers that are not known while a step
        is traced, such as a NaN that may come later, the guard counts.
    """

    id: str
    state: State
    reason: str
    targets: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()
    fixed_in: str = ""
    opt_in: bool = False
    reached: int = dataclasses.field(default=0, compare=False)
    changed: Mapping[str, int] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def fixed_in_text(self) -> str:
        """The release as text; empty while the patch is pending, and may not be loaded."""
        return self.fixed_in or ("" if self.state is State.PENDING else "not yet")

    @property
    def has_work(self) -> bool:
        """Whether the installed optax needs this patch, or may need it."""
        idle = self.state in (State.NOT_NEEDED, State.MISSING)
        return not (idle or (self.opt_in and self.state is State.DISABLED))

    def as_dict(self) -> dict[str, Any]:
        """Return the status as plain strings, numbers, lists and dicts."""
        return {
            "id": self.id,
            "state": self.state.value,
            "reason": self.reason,
            "targets": list(self.targets),
            "upstream": list(self.upstream),
            "fixed_in": self.fixed_in,
            "opt_in": self.opt_in,
            "reached": self.reached,
            "changed": dict(self.changed),
        }


@dataclasses.dataclass(frozen=True)
class Report:
    """State of every patch, with the versions of optax and jax. Iterates over ``PatchStatus``."""

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
        raise KeyError(f"Unknown patch {patch_id!r}. {suggest(patch_id, [p.id for p in self])}")

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists and strings."""
        return {
            "optax_version": self.optax_version,
            "jax_version": self.jax_version,
            "optax_location": self.optax_location,
            "patches": [patch.as_dict() for patch in self.patches],
        }

    def as_json(self) -> str:
        """Return the report as JSON text."""
        import json  # Not at the top: few programs need it.

        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        return self.as_text()

    def as_text(self, width: int | None = None) -> str:
        """Return the report as a table. With ``width``, wrap the reasons to fit a terminal."""
        place = f" in {self.optax_location}" if self.optax_location else ""
        heading = f"optax {self.optax_version}{place}, jax {self.jax_version}"
        rows: list[tuple[str, ...]] = [("patch", "state", "fixed in", "reason")]
        rows += [(p.id, p.state.value, p.fixed_in_text, p.reason) for p in self.patches]
        lines = [heading, "", *table(rows, width)]
        if not any(patch.has_work for patch in self.patches):
            lines += ["", "This optax needs no patches; you can remove `import optax_dtypefix`."]
        return "\n".join(lines)
