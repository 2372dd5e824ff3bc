"""What a stranger reads of the package: its address, its description, its forms."""

from __future__ import annotations

import re
import runpy

from support.pages import ROOT, read
from support.processes import run

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
LARGEST_TEXT = 65_536
"""In characters: what a form of GitHub takes."""


def test_the_description_of_the_package_has_no_relative_link() -> None:
    absolute = runpy.run_path(str(ROOT / "setup.py"))["absolute"]
    text = absolute(read(ROOT / "README.md"), "https://host/us/it")
    links = re.findall(r"\]\((.*?)\)", text)
    assert "https://host/us/it/blob/main/docs/install.md" in links
    assert "https://host/us/it/raw/main/docs/gains.svg" in links
    assert [link for link in links if not re.match("https?://", link)] == []


def test_the_address_is_filled_in_at_one_place() -> None:
    folders = ((ROOT, "[!.]*.*"), (ROOT / "docs", "**/*.md"), (ROOT / ".github", "**/*.yml"))
    files = [path for folder, pattern in folders for path in folder.glob(pattern)]
    address = re.compile(r"github\.com/\w+/optax-dtypefix")
    naming = [path.name for path in files if path.is_file() and address.search(read(path))]
    assert naming == ["pyproject.toml"]


def test_the_session_tells_the_site_its_address_and_version() -> None:
    names = re.findall(r"!ENV (\w+)", read(ROOT / "mkdocs.yml"))
    assert names == ["SITE_URL", "REPOSITORY", "VERSION"]
    assert [name for name in names if f'"{name}": ' not in read(ROOT / "noxfile.py")] == []


def test_a_form_takes_the_text_that_it_asks_for() -> None:
    """It asks for a line a patch twice; ``doctor --json`` is larger than a form of GitHub."""
    asked = re.findall(r"-m optax_dtypefix ([^,\n]+)", "".join(map(read, FORMS)))
    assert asked == ["doctor", "status -v"]
    assert 1_000 < len(run("-m", "optax_dtypefix", "status", "-v").stdout) < LARGEST_TEXT / 4
