"""Say of which code a figure is. Each record in ``docs/`` has this in its field ``recorded_on``.

Run ``python -m support.recorded`` in ``tests/``, or ``nox -s figures``. It fails if a page shows
figures of other code than that of the clone, and names the sessions that record them again, with
their minutes. ``nox -t figures`` runs these sessions, and no others.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parents[2]
LINE = 150
"""How long a field of a record may be that stands in one line."""

PAGES = {
    "audit.md": "audit/*.json",
    "benchmarks.md": "benchmarks/*.json",
    "long-runs.md": "long-runs.json",
    "public-programs.md": "public-programs.json",
    "upstream.md": "upstream/*.json",
}
"""For each page: its records."""


class Step(NamedTuple):
    """A session of ``noxfile.py`` that records one file in ``docs/``, in about so many minutes.

    Where ``nox -t figures`` cannot run it, ``arguments`` says what it needs.
    """

    session: str
    record: str
    minutes: int
    arguments: str = ""


def steps() -> list[Step]:
    """List what is recorded, in the order of ``nox -t figures``, and the minutes on two cores."""
    rows = runpy.run_path(str(ROOT / "patches" / "releases.py"))["RELEASES"]

    def each(key: str, session: str, folder: str, minutes: int) -> Iterator[Step]:
        for optax, row in rows.items():
            if key in row:
                yield Step(f"{session}({optax})", f"{folder}/{optax}.json", minutes)

    return [
        *each("audit", "record", "audit", 6),
        *each("mutants", "upstream", "upstream", 13),
        Step("record_long_runs", "long-runs.json", 16),
        *each("mutants", "mutants", "mutants", 20),
        Step("memory", "benchmarks/memory.json", 2),
        Step("accelerators", "benchmarks/accelerators.json", 4),
        Step("benchmarks", f"benchmarks/{[*rows][-1]}.json", 20),
        Step("public_programs", "public-programs.json", 60, " -- FOLDER_OF_CLONES"),
    ]


def is_stale(step: Step, code: str) -> bool:
    """Return whether a record is of other code, or missing."""
    file = ROOT / "docs" / step.record
    return not file.exists() or json.loads(file.read_text("utf-8"))["recorded_on"]["code"] != code


def left() -> list[Step]:
    """List the steps whose records are of other code."""
    code = this_code()["code"]
    return [step for step in steps() if is_stale(step, code)]


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
            digest.update(f"{file.relative_to(root)} {structure(ast.parse(text))}\n".encode())
    return {"version": versions[0], "code": digest.hexdigest()[:12]}


def structure(node: Any) -> Any:
    """Return what the dump of a tree shows, but the same on every Python."""
    if isinstance(node, list):
        return [structure(item) for item in node if not _is_text(item)]
    if not isinstance(node, ast.AST):
        return node
    fields = [item for item in ast.iter_fields(node) if item[1] not in (None, [])]
    return [type(node).__name__, *((name, structure(value)) for name, value in fields)]


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
    return [json.loads(file.read_text("utf-8")) for file in (ROOT / "docs").glob(PAGES[page])]


def main() -> int:
    """Name the sessions whose records are of other code, and say how long they take."""
    found = left()
    for step in found:
        print(f'docs/{step.record} is of other code: nox -s "{step.session}"{step.arguments}')
    if found:
        minutes = sum(step.minutes for step in found)
        print(f"{len(found)} left, about {minutes} minutes on two idle cores: nox -t figures")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
