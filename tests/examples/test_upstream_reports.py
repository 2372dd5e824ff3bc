"""The reports for optax say what stock optax does, and cover each fault that it still has."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import optax
import pytest
from packaging.version import Version

from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches import IDS, load
from optax_dtypefix.patches.releases import TESTED
from support.processes import CACHE, STOCK, run

FOLDER = Path(__file__).parents[2] / "docs" / "upstream-reports"
INDEX = FOLDER / "README.md"
REPORTS = sorted(set(FOLDER.glob("*.md")) - {INDEX})
BLOCK = re.compile(r"^```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(
    Version(optax.__version__) < Version(TESTED[-1]) or Version(jax.__version__) < Version("0.10"),
    reason="the reports are about the newest versions",
)
@pytest.mark.parametrize("report", REPORTS, ids=[report.stem for report in REPORTS])
def test_stock_prints_what_the_report_says(report: Path) -> None:
    script, printed = BLOCK.findall(report.read_text(encoding="utf-8"))
    done = run("-W", "ignore", "-c", script, **STOCK, **CACHE)
    assert done.stdout == printed, done.stderr


def test_each_open_fault_is_in_one_report() -> None:
    newest = Release(TESTED[-1])
    known = [f"{patch}.{fault.id}" for patch in IDS for fault in load(patch).faults_on(newest)]
    listed = re.findall(r"`(\w+\.\w+)`", INDEX.read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(known)


def test_the_index_lists_all_reports() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", INDEX.read_text(encoding="utf-8"))
    assert sorted(listed) == [report.name for report in REPORTS]
