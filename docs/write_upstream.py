"""Writes docs/upstream.md: what tests/evidence/upstream/compare.py found on each release.

Run as ``python docs/write_upstream.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent

COLUMNS = ("tests", "failed on stock", "failed with the shim", "only with the shim", "mended")

HEAD = """\
# The tests of optax itself

Every wheel of optax carries its own tests. Here they ran twice, each time in a process of its own:
on stock optax, and with the shim loaded before them. No test that passes on stock may fail with it.

| optax | jax | tests | fail on stock | fail with the shim | fail only with the shim | mended |
|---|---|---|---|---|---|---|"""

KNOWN = """
Those that fail only with the shim do so by intention. `tests/evidence/upstream/known.py` has the
reasons:
"""

TAIL = """
Tests that fail on stock as well say nothing of the shim: they are counted, and their causes were
not looked for. Those that pass with the shim alone are counted as mended.

`nox -s upstream` runs them again and writes this page. It fails if another test fails only with the
shim, or if one of those no longer does."""


def page(records: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of the page."""
    yield HEAD
    for record in records:
        counts = [sum(map(size, column)) for column in zip(*map(columns, record["files"].values()))]
        yield f"| {' | '.join(map(str, (record['optax'], record['jax'], *counts)))} |"
    failing = sorted(
        {
            name.partition("::")[2]
            for record in records
            for found in record["files"].values()
            for name in found["only with the shim"]
        }
    )
    if failing:
        yield KNOWN
        yield from (f"- `{name}`" for name in failing)
    yield TAIL


def columns(found: dict[str, Any]) -> list[Any]:
    """What is counted of one file of tests."""
    return [found[name] for name in COLUMNS]


def size(counted: Any) -> int:
    """A number, or how many tests are named."""
    return counted if isinstance(counted, int) else len(counted)


def main() -> None:
    """Reads the records and writes the page."""
    records = [json.loads(file.read_text("utf-8")) for file in FOLDER.glob("upstream/*.json")]
    records.sort(key=lambda record: Version(record["optax"]))
    (FOLDER / "upstream.md").write_text("\n".join(page(records)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
