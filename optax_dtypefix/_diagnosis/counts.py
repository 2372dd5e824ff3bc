"""Name the patches that worked on some code of the user, by what they count."""

from __future__ import annotations

from .._api import status

Counts = dict[str, tuple[int, int]]


def counts_so_far() -> Counts:
    """Return for each patch how often it changed something, and how often it was reached."""
    return {patch.id: (sum(patch.changed.values()), patch.reached) for patch in status()}


def patches_at_work(before: Counts) -> list[str]:
    """Return the patches that changed something since then; if none did, those reached."""
    now = counts_so_far()
    changed, reached = ([i for i in now if now[i][of] > before[i][of]] for of in (0, 1))
    return changed or reached
