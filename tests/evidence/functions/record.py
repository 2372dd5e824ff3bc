"""Measure the installed optax, and write the result into ``patches/functions.json``.

``python -m evidence.functions.record``, in ``tests/``. The other releases in the table stay as they
are; ``nox -s functions`` measures all.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import optax

from evidence.functions.measure import Measured, measured
from optax_dtypefix._diagnosis.scan.functions import (
    FILE,
    KINDS,
    Table,
    measured as recorded,
)
from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches import IDS
from optax_dtypefix.patches.releases import TESTED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


def updated(known: Table, release: str, found: Measured) -> Table:
    """Return the table with what was found on one release."""
    new: Table = {}
    for name in sorted({*known, *found}):
        for patch in IDS:
            before, now = known.get(name, {}).get(patch, {}), found.get(name, {}).get(patch, ())
            for kind in KINDS:
                affected = {
                    tested
                    for tested in TESTED
                    if any(map(Release(tested).within, before.get(kind, ())))
                }
                affected = affected - {release} | ({release} if kind in now else set())
                if affected:
                    kinds = new.setdefault(name, {}).setdefault(patch, {})
                    kinds[kind] = list(ranges_of(affected))
    return new


def ranges_of(releases: Collection[str]) -> Iterator[str]:
    """Yield PEP 440 specifiers of some tested releases. What the newest has, later ones have."""
    start = None
    for tested in TESTED:
        if tested in releases:
            start = start or tested
        elif start:
            yield f"<{tested}" if start == TESTED[0] else f">={start},<{tested}"
            start = None
    if start:
        yield f">={start}"


def write(new: Table) -> None:
    """Write the table, one function or call a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(patches)}" for name, patches in new.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write(updated(recorded(), optax.__version__, measured()))
