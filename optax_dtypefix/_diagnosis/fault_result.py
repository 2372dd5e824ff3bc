"""The result of each fault that ``doctor`` reproduces, and its text."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from .._engine.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Verdict(str, enum.Enum):
    """What became of a fault, in the order in which the conclusion counts them."""

    STILL_FAILS = "still fails"
    NOT_SHOWN = "not shown"
    FIXED = "fixed"
    FIXED_BY_OTHERS = "fixed by others"
    DISABLED = "disabled"
    OPT_IN = "opt-in"
    NOT_IN_RELEASE = "not in this release"


FIXED = (Verdict.FIXED, Verdict.FIXED_BY_OTHERS)


@dataclasses.dataclass(frozen=True)
class FaultResult:
    """One fault. ``stock`` and ``patched`` are the errors there, None if there was none.

    ``fixed_by`` has the patches that fix it, if it is fixed.
    """

    patch: str
    fault: str
    summary: str
    upstream: str
    stock: str | None
    patched: str | None
    verdict: Verdict
    state: str
    reason: str
    fixed_by: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id, as the pages name it."""
        return f"{self.patch}.{self.fault}"

    @property
    def verdict_text(self) -> str:
        """The verdict; where other patches fix the fault, with their names if they are known."""
        if self.verdict is Verdict.FIXED_BY_OTHERS and self.fixed_by:
            return f"fixed by {', '.join(self.fixed_by)}"
        return self.verdict.value

    @property
    def messages(self) -> str:
        """Both messages, in one line."""
        patched = "" if self.patched is None else f"; patched: {self.patched.strip()}"
        return " ".join(f"stock: {(self.stock or 'ok').strip()}{patched}".split())


def summary(rows: Sequence[FaultResult]) -> str:
    """Count the fixed faults of a patch, and name those that are not fixed by this patch."""
    fixed = sum(row.verdict in FIXED for row in rows)
    others: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: list(Verdict).index(row.verdict)):  # The worst first.
        if row.verdict is not Verdict.FIXED:
            others.setdefault(row.verdict_text, []).append(row.fault)
    whole = len(others) == 1 and len(rows) == len(next(iter(others.values())))
    named = (text if whole else f"{text}: {', '.join(faults)}" for text, faults in others.items())
    return "; ".join([f"{fixed}/{len(rows)} fixed", *named])


def in_detail(rows: Sequence[FaultResult], paint: Callable[[str], str]) -> str:
    """Return a count of the faults of a patch, and every detail of each."""
    heading = f"{rows[0].patch}: {paint(rows[0].state)}, {paint(summary(rows))}"
    if rows[0].state != State.APPLIED.value:
        heading += f"\n  {rows[0].reason}"
    return "\n\n".join([heading, *(_details(row, paint) for row in rows)]) + "\n"


def _details(row: FaultResult, paint: Callable[[str], str]) -> str:
    sections = {
        "stock": row.stock or "ok",
        "patched": row.patched or "ok",
        "upstream": row.upstream or "no known issue",
    }
    lines = [f"{row.id}: {paint(row.verdict_text)}", f"  {row.summary}"]
    for title, text in sections.items():
        lines += [f"  {title}:", *(f"    {line}" for line in text.strip().splitlines())]
    return "\n".join(lines)
