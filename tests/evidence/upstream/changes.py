"""List what an untested optax broke, fixed or changed since the newest tested release.

Run ``python -m evidence.upstream.changes DOCTOR.json AUDIT.json`` in ``tests/``, on what
``doctor --json`` and ``python -m evidence.audit --json`` wrote. It prints Markdown, and exits with
1 if there is something to do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidence.audit.record import count_by_name
from evidence.audit.results import KEPT
from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches import IDS, load
from optax_dtypefix.patches.releases import TESTED

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS = Path(__file__).parents[3] / "docs" / "audit"


def faults(doctor: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield heading and line of each fault that came, went, or is not fixed."""
    newest = Release(TESTED[-1])
    known = {f"{i}.{fault.id}" for i in IDS for fault in load(i).faults_on(newest)}
    for patch in doctor["patches"]:
        if patch["state"] in ("failed", "unsupported"):
            yield "Not patched", f"{patch['id']}: {patch['reason']}"
    for row in doctor["faults"]:
        name = f"{row['patch']}.{row['fault']}"
        if row["verdict"] == "still fails":
            yield "Not fixed", f"{name}: {row['patched']}"
        if row["stock"] is not None and name not in known:
            yield "Back again", f"{name}: {row['stock']}"
        if row["stock"] is None and name in known:
            yield "Gone from stock", f"{name}: {row['summary']}"


def cells(audit: dict[str, Any], before: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield heading and line of each transformation that came, went, or is broken.

    Args:
      audit: all that ``evidence.audit --json`` printed.
      before: a record in ``docs/``, which has counts only.
    """
    old, new = before["transformations"], count_by_name(audit["rows"])
    for name, why in audit["still_broken"].items():
        yield "Broken with the shim", f"{name}: {why}"
    for name in new.keys() - old.keys():
        yield "New transformation", name
    for name in old.keys() - new.keys():
        yield "Transformation that is gone", name
    for name in new.keys() & old.keys():
        (was, _), (now, measured) = map(_count_broken, (old[name], new[name]))
        if was != now:
            change = "Stock breaks more" if now > was else "Stock breaks less"
            yield change, f"{name}: {now} of {measured} cells, were {was}"


def _count_broken(verdicts: dict[str, int]) -> tuple[int, int]:
    """Count the cells that stock breaks, and all cells."""
    cells = sum(verdicts.values())
    return cells - verdicts.get(KEPT, 0), cells


def main(doctor_path: str, audit_path: str) -> int:
    """Print the changes under their headings."""
    doctor, audit = (json.loads(Path(p).read_text("utf-8")) for p in (doctor_path, audit_path))
    before = json.loads((RECORDS / f"{TESTED[-1]}.json").read_text("utf-8"))
    found = sorted({*faults(doctor), *cells(audit, before)})
    print(f"optax {doctor['optax_version']} with jax {doctor['jax_version']}, ", end="")
    print(f"against {TESTED[-1]}: {len(found) or 'no'} changes.")
    for heading in sorted({heading for heading, _ in found}):
        print(f"\n## {heading}\n")
        print(*(f"- {line}" for of, line in found if of == heading), sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
