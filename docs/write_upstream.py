"""Write docs/upstream.md from the records in docs/upstream/.

Run ``python docs/write_upstream.py``. ``nox -s upstream`` writes the records.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.recorded import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent

COLUMNS = ("tests", "patched", "opt-ins", "stock")

HEAD = """\
# The tests of optax itself

{recorded_on}

Every wheel of optax contains its own tests. We ran them with the default patches, and with all
opt-in patches, too. Tests that failed ran on stock optax. No test that passes on stock may fail
with the patches, unless this page lists it. `nox -t full` also runs those of 0.1.9, 0.2.4, 0.2.6
and 0.2.7.

| optax | jax | tests | fail patched | fail with all opt-in patches | fail on stock, too |
|---|---|---|---|---|---|"""

KNOWN = """
These tests fail only with the opt-in patches, because they assert what such a patch changes on
purpose. `tests/evidence/upstream/known.py` gives the reason for each:
"""

TAIL = """
A test that fails on stock, too, says nothing about the patches. The tests of `assignment`,
`perturbations` and the segmentation losses did not run: that code calls no patched function but
`tree.sum`. `nox -s upstream` runs the tests again and writes this page."""


def page(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield HEAD.format(recorded_on=sentence(records))
    for record in records:
        cells = (record[name] for name in ("optax", "jax", *COLUMNS))
        yield f"| {' | '.join(map(str, cells))} |"
    failing = sorted({name for record in records for name in record["only_with_the_shim"]})
    if failing:
        yield KNOWN
        yield from (f"- `{name}`" for name in failing)
    yield TAIL


def main() -> None:
    """Read the records and write the page."""
    records = [json.loads(file.read_text("utf-8")) for file in FOLDER.glob("upstream/*.json")]
    records.sort(key=lambda record: Version(record["optax"]))
    (FOLDER / "upstream.md").write_text("\n".join(page(records)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
