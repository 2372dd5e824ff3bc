"""The pages in docs/patches/ are up to date, and their examples print what the pages say."""

from __future__ import annotations

import doctest
import re
import runpy
from pathlib import Path
from typing import Any

import optax
import pytest

from optax_dtypefix import patches
from optax_dtypefix._engine.release import Release
from support.processes import STOCK, finish, run, start

ROOT = Path(__file__).parents[2]
WRITE_PATCHES = ROOT / "docs" / "write_patches.py"
RELEASE = Release(optax.__version__)
WRITER = runpy.run_path(str(WRITE_PATCHES))
EXAMPLES = {patch_id: WRITER["example_of"](patch_id) for patch_id in patches.IDS}


def test_pages_are_up_to_date(tmp_path: Path) -> None:
    assert run(WRITE_PATCHES, tmp_path).returncode == 0
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")]
    pages = [path.relative_to(ROOT) for path in (ROOT / "docs" / "patches").iterdir()]
    assert {*written} == {*pages, Path("mkdocs.yml")}
    for path in written:
        kept = (ROOT / path).read_text(encoding="utf-8")
        assert kept == (tmp_path / path).read_text(encoding="utf-8"), "python docs/write_patches.py"


@pytest.mark.parametrize("patch_id", patches.IDS)
def test_example_goes_wrong_only_without_the_patch(patch_id: str) -> None:
    example = EXAMPLES[patch_id]
    (fault,) = (f for f in patches.load(patch_id).faults if f.id == example.fault)
    if not RELEASE.within(fault.releases):
        pytest.skip(f"{patch_id}.{fault.id} is a fault of optax {fault.releases}, not of {RELEASE}")
    ways = (STOCK, {"OPTAX_DTYPEFIX_ONLY": patch_id})
    stock, patched = map(output, finish([start("-c", example.script, **way) for way in ways]))
    assert patched == example.patched_prints
    assert stock != patched
    if str(RELEASE) == WRITER["affected"](fault)[-1]:
        assert doctest.OutputChecker().check_output(example.stock_prints, stock, doctest.ELLIPSIS)


@pytest.mark.parametrize("patch_id", patches.IDS)
def test_headline_and_example_are_short(patch_id: str) -> None:
    example = EXAMPLES[patch_id]
    assert len(example.headline.split()) <= 8
    assert len([line for line in example.script.splitlines() if line]) <= 9


def output(done: Any) -> str:
    """Return what a script printed and the first line of the error that it raised."""
    errors = re.findall(r"^(?:\w+\.)*(\w+Error: .*)", done.stderr, flags=re.MULTILINE)
    return "\n".join((*done.stdout.splitlines(), *errors[-1:]))
