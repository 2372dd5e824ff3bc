"""Say of which code a figure is. Each record in ``docs/`` has this in its field ``recorded_on``.

Run ``python -m support.recorded`` in ``tests/``, or ``nox -s figures``. It fails, and names the
command that records a page again, if the page shows figures of other code than that of the clone.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).parents[2]
LINE = 150
"""How long a field of a record may be that stands in one line."""

PAGES = {
    "audit.md": ("audit/*.json", "nox -s record picture"),
    "benchmarks.md": ("benchmarks/*.json", "nox -s benchmarks memory page_of_benchmarks"),
    "long-runs.md": ("long-runs.json", "nox -s page_of_long_runs"),
    "upstream.md": ("upstream/*.json", "nox -s upstream"),
}
"""For each page: its records, and the command that writes both."""


def this_code(root: Path = ROOT) -> dict[str, str]:
    """Return the version of a clone, and a digest of its code.

    Comments, docstrings, the version and the table of tested releases do not count.
    """
    files = [file for name in ("optax_dtypefix", "patches") for file in (root / name).rglob("*.py")]
    digest, versions = hashlib.sha256(), []
    for file in sorted(files):
        text = file.read_text("utf-8")
        versions += re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE)
        if file.name != "releases.py":
            text = re.sub(r"^__version__ = .*$", "", text, flags=re.MULTILINE)
            digest.update(f"{file.relative_to(root)} {_structure(ast.parse(text))}\n".encode())
    return {"version": versions[0], "code": digest.hexdigest()[:12]}


def _structure(node: Any) -> Any:
    """Return what the dump of a tree shows, but the same on every Python."""
    if isinstance(node, list):
        return [_structure(item) for item in node if not _is_text(item)]
    if not isinstance(node, ast.AST):
        return node
    fields = [item for item in ast.iter_fields(node) if item[1] not in (None, [])]
    return [type(node).__name__, *((name, _structure(value)) for name, value in fields)]


def _is_text(node: Any) -> bool:
    """Return whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def sentence(records: Iterable[Mapping[str, Any]]) -> str:
    """Say at the top of a page of which version its records are."""
    versions = {record.get("recorded_on", {}).get("version") for record in records}
    if None in versions:
        return "Recorded on older code (before 1.0.0)."
    return f"Recorded on version {' and '.join(sorted(versions))}."


def write(record: Mapping[str, Any], file: Path) -> None:
    """Write a record as JSON: a line for each field, or for each item of a long one."""
    fields = ",\n".join(f" {json.dumps(name)}: {_field(value)}" for name, value in record.items())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{{\n{fields}\n}}\n", encoding="utf-8")


def _field(value: Any) -> str:
    text = json.dumps(value)
    if len(text) < LINE or not isinstance(value, (dict, list)):
        return text
    if isinstance(value, list):
        lines, ends = [json.dumps(item) for item in value], "[]"
    else:
        lines, ends = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()], "{}"
    inside = ",\n  ".join(lines)
    return f"{ends[0]}\n  {inside}\n {ends[1]}"


def records_of(page: str) -> list[dict[str, Any]]:
    """Return the records of a page."""
    return [json.loads(file.read_text("utf-8")) for file in (ROOT / "docs").glob(PAGES[page][0])]


def main() -> int:
    """Name the pages that show other code."""
    code, found = this_code()["code"], 0
    for page, (_, command) in PAGES.items():
        codes = {it.get("recorded_on", {}).get("code") for it in records_of(page)}
        if codes != {code}:
            print(f"docs/{page} shows figures of other code. Record it again: {command}")
            found = 1
    return found


if __name__ == "__main__":
    sys.exit(main())
