"""The Python code in the pages runs and prints what the pages say."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import jax
import pytest
from packaging.version import Version

import optax_dtypefix
from support.processes import STOCK, run


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


ROOT = Path(__file__).parents[2]
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = (*sorted(ROOT.glob("*.md")), *SITE)
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# test_patch_pages.py and test_upstream_reports.py run the code in these folders.
ELSEWHERE = ("patches", "upstream-reports")
WITH_CODE = [
    page for page in PAGES if "```python" in read(page) and page.parent.name not in ELSEWHERE
]


@pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated")  # In optax 0.1.2.
@pytest.mark.parametrize("page", WITH_CODE, ids=[page.name for page in WITH_CODE])
def test_code_runs(page: Path) -> None:
    namespace: dict[str, Any] = {}
    printed = ""
    for kind, text in BLOCK.findall(read(page)):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile(text, str(page), "exec"), namespace)
            printed = stdout.getvalue()
        elif printed:
            # Further lines quote jax, whose older releases use other words.
            lines = None if Version(jax.__version__) >= Version("0.10") else 2
            assert printed.splitlines()[:lines] == text.splitlines()[:lines]


def test_pinned_versions_are_tested() -> None:
    module = ast.parse(read(ROOT / "noxfile.py"))
    names = ("_BEFORE_NUMPY_2", "MATCHING_JAX")
    module.body = [
        node
        for node in module.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in names
    ]
    tested: dict[str, Any] = {}
    exec(compile(module, "noxfile.py", "exec"), tested)
    pages = BLOCK.findall(read(ROOT / "docs" / "pinned.md"))
    blocks = [text.split() for _, text in pages if "optax==" in text]
    assert len(blocks) == 2
    for optax, *others in blocks:
        jax_version, *held_back = tested["MATCHING_JAX"][optax.partition("==")[2]]
        own = f"optax-dtypefix=={optax_dtypefix.__version__}"
        assert others == [f"jax=={jax_version}", f"jaxlib=={jax_version}", *held_back, own]


def test_pages_with_code_are_found() -> None:
    assert {page.name for page in WITH_CODE} >= {"README.md", "contract.md"}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_first_example_is_nan_on_stock(page: str) -> None:
    text = read(ROOT / page)
    example = next(code for kind, code in BLOCK.findall(text) if kind == "python")
    done = run("-W", "ignore", "-c", example, **STOCK)
    assert done.stdout == "[nan nan nan]\n", done.stderr
    assert "this prints `[nan nan nan]`" in text


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """The site builder checks neither pictures nor pages that are outside of the site."""
    for link in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if link.startswith(("http://", "https://")):
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", read(target), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]
            assert heading in slugs, link


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- [^:\n]+: (\S+\.md)$", read(ROOT / "mkdocs.yml"), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in SITE)


@pytest.mark.parametrize(("page", "words"), [("README.md", 900), ("CONTRIBUTING.md", 350)])
def test_page_is_short(page: str, words: int) -> None:
    assert len(read(ROOT / page).split()) <= words
