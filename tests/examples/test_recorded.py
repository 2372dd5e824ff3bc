"""Pages say of which code their figures are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import optax_dtypefix
from support.recorded import PAGES, ROOT, records_of, sentence, this_code

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("page", PAGES)
def test_a_page_starts_with_the_version_of_its_records(page: str) -> None:
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    assert lines[2] == sentence(records_of(page))


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
