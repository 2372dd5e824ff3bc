"""Measure the installed optax, and write the result into ``patches/functions.json``.

``python -m evidence.functions.record``, in ``tests/``, measures the functions whose code or rows
changed since they were measured on this release, as ``digests.json`` tells. The other releases in
the table stay as they are; ``nox -s functions`` measures all.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import optax

from evidence.functions import depends
from evidence.functions.measure import Measured, functions, measured
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


def updated(
    known: Table, release: str, found: Measured, kept: Collection[str] = frozenset()
) -> Table:
    """Return the table with what was found on one release. The functions kept are as they were."""
    new: Table = {}
    for name in sorted({*known, *found}):
        if name.partition("(")[0] in kept:
            new.update({name: known[name]} if name in known else {})
            continue
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


def main() -> None:
    """Measure what changed."""
    now = {name: depends.digest_of(name, function) for name, function in functions().items()}
    digests, release = depends.recorded(), optax.__version__
    kept = {name for name, digest in now.items() if digests.get(name, {}).get(release) == digest}
    print(f"{len(now) - len(kept)} of {len(now)} functions to measure on optax {release}")
    if found := measured(*sorted(now.keys() - kept)) if kept != now.keys() else {}:
        write(updated(recorded(), release, found, kept))
    for name, digest in now.items():
        digests.setdefault(name, {})[release] = digest
    depends.write(digests)


if __name__ == "__main__":
    main()
