"""What a stranger reads of the package: its address, its description, its forms."""

from __future__ import annotations

import json
import re
import runpy
from typing import TYPE_CHECKING, Any

from support.pages import ROOT, read
from support.processes import run, stdout_of

if TYPE_CHECKING:
    from pathlib import Path

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


def test_the_tree_has_no_address_and_a_release_fills_it_in() -> None:
    folders = ((ROOT, "[!.]*.*"), (ROOT / "docs", "**/*.md"), (ROOT / ".github", "**/*.yml"))
    files = [path for folder, pattern in folders for path in folder.glob(pattern)]
    address = re.compile(r"github\.com/\w+/optax-dtypefix|\bOWNER\b")
    assert [path.name for path in files if path.is_file() and address.search(read(path))] == []
    release = read(ROOT / ".github" / "workflows" / "release.yml")
    package, publish = release.split("\n  publish:")
    assert "PACKAGE_REPOSITORY: ${{ github.server_url }}/${{ github.repository }}\n" in package
    assert "nox --session package" in package
    assert "PACKAGE_REPOSITORY" not in publish


_SETUPTOOLS = {
    "__init__.py": "import json\ndef setup(**given): print(json.dumps(given, default=str))",
    "command/build_py.py": "class build_py: pass",
}
"""In place of setuptools, which only a build has."""


def built(address: str, folder: Path) -> Any:
    for name, source in _SETUPTOOLS.items():
        path = folder / "setuptools" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source, encoding="utf-8")
    variables = {"PYTHONPATH": str(folder), "PACKAGE_REPOSITORY": address}
    return json.loads(stdout_of(run(ROOT / "setup.py", **variables)))


def test_a_local_build_has_no_address(tmp_path: Path) -> None:
    given = built("", tmp_path)
    assert given["project_urls"] == {}
    assert given["long_description"] == read(ROOT / "README.md")


def test_a_release_has_its_addresses(tmp_path: Path) -> None:
    address = "https://github.com/Some-One/optax-dtypefix"
    given = built(address, tmp_path)
    assert given["project_urls"] == {
        "Documentation": "https://some-one.github.io/optax-dtypefix/",
        "Repository": address,
        "Issues": f"{address}/issues",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
    }
    assert f"]({address}/blob/main/docs/install.md)" in given["long_description"]


def test_the_session_tells_the_site_its_address_and_version() -> None:
    names = re.findall(r"!ENV (\w+)", read(ROOT / "mkdocs.yml"))
    assert names == ["SITE_URL", "REPOSITORY", "VERSION"]
    assert [name for name in names if f'"{name}": ' not in read(ROOT / "noxfile.py")] == []


def test_a_form_takes_the_text_that_it_asks_for() -> None:
    """It asks for a line a patch twice; ``doctor --json`` is larger than a form of GitHub."""
    asked = re.findall(r"-m optax_dtypefix ([^,\n]+)", "".join(map(read, FORMS)))
    assert asked == ["doctor", "status -v"]
    assert 1_000 < len(run("-m", "optax_dtypefix", "status", "-v").stdout) < LARGEST_TEXT / 4
