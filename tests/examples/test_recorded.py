"""Pages say of which code their figures are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import optax_dtypefix
from support.recorded import (
    PAGES,
    ROOT,
    Step,
    is_stale,
    records_of,
    sentence,
    steps,
    this_code,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("page", PAGES)
def test_a_page_starts_with_the_version_of_its_records(page: str) -> None:
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    assert lines[2] == sentence(records_of(page))


def test_a_record_is_json_with_a_line_for_each_item_of_a_long_field(tmp_path: Path) -> None:
    record: dict[str, Any] = {"optax": "0.2.8", "short": {"a": [1, 2]}, "empty": {}}
    record["long"] = {f"name {n}": {"+": n} for n in range(20)}
    record["rows"] = [f"step {n}" for n in range(30)]
    write(record, tmp_path / "a" / "record.json")
    text = (tmp_path / "a" / "record.json").read_text("utf-8")
    assert json.loads(text) == record
    assert len(text.splitlines()) == 2 + 3 + (2 + 20) + (2 + 30)


def test_the_repository_keeps_what_pages_show_and_not_what_was_measured() -> None:
    sizes = {str(path): path.stat().st_size for path in ROOT.glob("docs/**/*.json")}
    assert sum(sizes.values()) < 200_000, sizes


def test_each_record_that_a_page_shows_has_a_session_that_records_it_again() -> None:
    shown = {path for records in PAGES.values() for path in (ROOT / "docs").glob(records)}
    recorded = {ROOT / "docs" / step.record for step in steps()}
    # A check of a device is of another machine.
    assert {path for path in shown - recorded if "device" not in path.name} == set()
    sessions = (ROOT / "noxfile.py").read_text("utf-8")
    for step in steps():
        assert f"def {step.session.partition('(')[0]}(session" in sessions


def test_all_figures_are_recorded_in_130_minutes() -> None:
    """By ``nox -t figures``, which has no clones of public programs."""
    assert sum(step.minutes for step in steps() if not step.arguments) <= 130


def test_a_record_of_other_code_or_none_is_stale() -> None:
    (record,) = (ROOT / "docs" / "audit").glob("0.1.9.json")
    code = json.loads(record.read_text("utf-8"))["recorded_on"]["code"]
    step = Step("record(0.1.9)", "audit/0.1.9.json", 8)
    assert not is_stale(step, code)
    assert is_stale(step, "other")
    assert is_stale(Step("record(0.0.1)", "audit/0.0.1.json", 4), code)


def test_versions_of_records() -> None:
    old, new = ({"recorded_on": {"version": version}} for version in ("1.0.0", "1.1.0"))
    assert sentence([new]) == "Recorded on version 1.1.0."
    assert sentence([new, old]) == "Recorded on version 1.0.0 and 1.1.0."
    assert "older code" in sentence([new, {}])


SOURCE = '''
"""A module."""

__version__ = "1.0.0"

def half(x):
    """Return a half."""
    return x[1:]  # Without the first.
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("1.0.0", "1.0.1", True),
        ("A module", "The module", True),
        ("Return a half", "Give a half", True),
        ("  # Without the first.", "", True),
        ("[1:]", "[2:]", False),
        ("[1:]", "[:1]", False),
        ("return", "yield", False),
    ],
)
def test_only_code_changes_the_digest(tmp_path: Path, old: str, new: str, same: bool) -> None:
    folder = tmp_path / "optax_dtypefix"
    folder.mkdir()
    (folder / "__init__.py").write_text(SOURCE)
    before = this_code(tmp_path)
    assert before["version"] == "1.0.0"
    (folder / "__init__.py").write_text(SOURCE.replace(old, new))
    assert (this_code(tmp_path)["code"] == before["code"]) == same


def test_the_version_is_that_of_the_package() -> None:
    assert this_code()["version"] == optax_dtypefix.__version__
