"""The page on tests names the tests of each rule of the contract; ``.ci/run`` counts the tests."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from typing import TYPE_CHECKING

from support.recorded import ROOT

if TYPE_CHECKING:
    from pathlib import Path

WRITER = runpy.run_path(str(ROOT / "docs" / "write_evidence.py"))


def test_the_table_of_rules_is_up_to_date() -> None:
    page = (ROOT / "docs" / "evidence.md").read_text("utf-8")
    assert WRITER["page"]() == page, "python docs/write_evidence.py"


def test_no_rule_of_the_contract_has_lost_its_test() -> None:
    assert sorted(WRITER["rules"]()) == [f"C{number}" for number in range(8)]
    in_readme = {rule: files for rule, (files, _) in WRITER["table"]().items()}
    assert {rule: files for rule, files in in_readme.items() if len(files) < 2} == {}


def test_ci_counts_the_tests_of_all_sessions(tmp_path: Path) -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    (code,) = re.findall(r"<<'END'\n(.*?)^END$", script, re.MULTILINE | re.DOTALL)

    def count(*steps: str) -> str:
        command = [sys.executable, "-c", code, str(tmp_path), *steps]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    (tmp_path / "README").write_text("== 30 passed, 2 skipped, 9 warnings in 5.00s (0:01:00) ==\n")
    (tmp_path / "pages").write_text("1 passed in 1.00s\nand more\n2 passed, 1 xfailed in 2.00s\n")
    (tmp_path / "lint").write_text("All checks passed!\n")
    assert count() == "tests: 33 passed, 0 failed, 2 skipped\n"
    (tmp_path / "lint.failed").touch()
    (tmp_path / "engine").write_text("= 1 failed, 4 passed, 2 errors in 5.00s =\n")
    (tmp_path / "engine.failed").touch()
    sessions = "README: tests, and sessions"
    assert count(sessions) == "tests: 37 passed, 4 failed, 2 skipped\n"
    assert count("tools", sessions) == "tests: 37 passed, 5 failed, 2 skipped\n"
