"""The pages in docs/patches/ are those that the patches' own files give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_patch_has_its_page_and_it_is_not_stale(tmp_path: Path) -> None:
    command = [sys.executable, str(DOCS / "write_patches.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (DOCS / "patches").iterdir()}
    assert kept == written, "run: python docs/write_patches.py"
