"""The pages in docs/patches/, and the lists of all, are those that the patches' own files give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_patch_has_its_page_and_none_is_stale(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "docs" / "write_patches.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")]
    pages = [path.relative_to(ROOT) for path in (ROOT / "docs" / "patches").iterdir()]
    assert {*written} == {*pages, Path("README.md"), Path("mkdocs.yml")}
    for path in written:
        kept = (ROOT / path).read_text(encoding="utf-8")
        assert kept == (tmp_path / path).read_text(encoding="utf-8"), "python docs/write_patches.py"
