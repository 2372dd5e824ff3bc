"""The Python code in the pages runs and prints what the pages say."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

import optax_dtypefix
from optax_dtypefix._commands.parser import parse
from optax_dtypefix._engine.release import Release
from optax_dtypefix._environment import VARIABLES
from optax_dtypefix.patches import IDS, load
from optax_dtypefix.patches.releases import RELEASES, TESTED
from support.pages import ROOT, blocks, check_code, read
from support.processes import STOCK, run

SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = (*sorted(ROOT.glob("*.md")), *SITE)
NAME_NO_NEWEST_RELEASE = (
    *("README.md", "CONTRIBUTING.md", "pyproject.toml", "noxfile.py", ".ci/run", "mkdocs.yml"),
    *("docs/index.md", "docs/api.md", "patches/__init__.py"),
)
# test_patch_pages.py and test_upstream_reports.py run the code in these folders,
# test_notebook_page.py and evidence/downstream/test_recipes.py run that in these pages.
ELSEWHERE = {"patches", "upstream-reports", "notebook.md", "recipes.md"}
WITH_CODE = [
    page
    for page in PAGES
    if "```python" in read(page) and not ELSEWHERE & {page.parent.name, page.name}
]


@pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated")  # In optax 0.1.2.
@pytest.mark.parametrize("page", WITH_CODE, ids=[page.name for page in WITH_CODE])
def test_code_runs(page: Path) -> None:
    check_code(read(page))


def test_a_linter_leaves_the_import_in_every_example() -> None:
    """By F401, `ruff check --fix` deletes an import that nothing mentions."""
    scripts = [read(path) for path in (ROOT / "examples").glob("[!_]*.py")]
    for code in (*scripts, *(code for page in PAGES for _, code in blocks(read(page)))):
        for comment in re.findall(r"^import optax_dtypefix\b(.*)$", code, re.MULTILINE):
            assert "optax_dtypefix." in code or comment.startswith("  # noqa: F401"), code


def test_commands_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    commands = re.compile(r"-m optax_dtypefix ([a-z][^`#&|>\n]*)")
    found = {command.strip() for page in PAGES for command in commands.findall(read(page))}
    assert {"activate", "status --json", "run -m package.train"} <= found
    for command in sorted(found):
        parse(shlex.split(command))


def test_pinned_versions_are_tested() -> None:
    found = blocks(read(ROOT / "docs" / "pinned.md"))
    pins = [text.split() for _, text in found if "optax==" in text]
    assert len(pins) == 2
    for optax, *others in pins:
        jax_version, *held_back = RELEASES[optax.partition("==")[2]]["jax"]
        own = f"optax-dtypefix=={optax_dtypefix.__version__}"
        assert others == [f"jax=={jax_version}", f"jaxlib=={jax_version}", *held_back, own]


def test_the_output_of_status_is_of_this_version() -> None:
    assert f"optax-dtypefix {optax_dtypefix.__version__}: " in read(ROOT / "docs" / "control.md")


def test_the_api_page_lists_every_public_name() -> None:
    found = re.findall(r"^::: optax_dtypefix\.(\w+)$", read(ROOT / "docs" / "api.md"), re.MULTILINE)
    assert sorted(found) == sorted(optax_dtypefix.__all__)


def test_the_api_page_has_no_roles_of_sphinx() -> None:
    """The site does not know them, and shows them as they are."""
    public = [getattr(optax_dtypefix, name) for name in optax_dtypefix.__all__]
    inside = [value for it in public for value in vars(it).values() if inspect.isclass(it)]
    texts = [inspect.getdoc(it) or "" for it in (*public, *inside)]
    assert [text for text in texts if re.search(r":\w+:`", text)] == []


def test_which_releases_work_with_the_newest_jax() -> None:
    too_old = [release for release, row in RELEASES.items() if "needs_its_jax" in row]
    first = next(release for release in TESTED if release not in too_old)
    but = " and ".join(too_old[TESTED.index(first) :])
    sentence = f"From {first} on, every tested release but {but} also works with the newest"
    assert sentence in read(ROOT / "docs" / "install.md")


def test_the_classifiers_are_the_tested_pythons() -> None:
    classifiers = re.findall(r":: Python :: (3\.\d+)", read(ROOT / "pyproject.toml"))
    pythons = {python for row in RELEASES.values() for python in row.get("python", ())}
    assert {*classifiers} == {*pythons, "3.11"}, "3.11 runs all sessions but these"


def test_the_newest_release_has_faults_of_each_default_patch() -> None:
    """So says the README."""
    newest = Release(TESTED[-1])
    assert all(patch.opt_in or patch.faults_on(newest) for patch in map(load, IDS))


@pytest.mark.parametrize("page", NAME_NO_NEWEST_RELEASE)
def test_only_the_table_names_the_newest_release(page: str) -> None:
    assert TESTED[-1] not in read(ROOT / page)


@pytest.mark.parametrize("page", SITE, ids=[page.stem for page in SITE])
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    """Rounding is stochastic, and what was measured is a combination of settings."""
    assert re.findall(r"by turns|\bregimes?\b|\bcells? (?:is|are)\b", read(page)) == []


def test_pages_with_code_are_found() -> None:
    assert {page.name for page in WITH_CODE} >= {"README.md", "contract.md"}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_first_example_is_nan_on_stock(page: str) -> None:
    text = read(ROOT / page)
    example = next(code for kind, code in blocks(text) if kind == "python")
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


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("long-runs.md", "bf16 fp16"),
        ("recipes.md", "EMA target network"),
        ("contract.md", "float32 job"),
        ("long-runs.md", "second derivatives PINN"),
        ("questions.md", "prove A/B"),
        ("questions.md", "ounding off for one param group"),
        ("questions.md", "eproducible random seed"),
        ("questions.md", "haiku"),
        ("questions.md", "jaxopt"),
        ("questions.md", "cross entropy logits"),
        ("troubleshooting.md", "SAC TD3 target network temperature"),
        ("troubleshooting.md", "loss not decreasing"),
        ("troubleshooting.md", "loss stuck"),
        ("troubleshooting.md", "recompiles retraces"),
        ("troubleshooting.md", "donated buffers were not usable"),
        *(("control.md", f"`{name}`") for name in VARIABLES.values()),
    ],
)
def test_what_users_search_for_is_in_a_heading(page: str, words: str) -> None:
    """The search of the site shows a section first if its heading has all words."""
    headings = re.findall(r"^#+ (.*)$", read(ROOT / "docs" / page), re.MULTILINE)
    assert [heading for heading in headings if all(word in heading for word in words.split())]


def test_the_home_page_has_the_pictures_of_the_readme() -> None:
    readme, home = (read(ROOT / page) for page in ("README.md", "docs/index.md"))
    pictures = re.findall(r"!\[.*?\]\(docs/(.*?)\)", readme)
    assert pictures == ["one-import.svg", "gains.svg"]
    assert re.findall(r"!\[.*?\]\((.*?)\)", home) == pictures


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- [^:\n]+: (\S+\.md)$", read(ROOT / "mkdocs.yml"), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in SITE)


@pytest.mark.parametrize(("page", "words"), [("README.md", 900), ("CONTRIBUTING.md", 460)])
def test_page_is_short(page: str, words: int) -> None:
    assert len(read(ROOT / page).split()) <= words
