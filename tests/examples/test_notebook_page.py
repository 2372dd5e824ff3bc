"""The cells in docs/notebook.md print what the page says, in the kernel of a notebook."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support.notebooks import start_notebook
from support.pages import ROOT, blocks, read, sections
from support.processes import finish, stdout_of

if TYPE_CHECKING:
    from pathlib import Path

PARTS = sections(read(ROOT / "docs" / "notebook.md"))


@pytest.mark.parametrize("part", PARTS)
def test_cells_print_what_the_page_says(part: str, tmp_path: Path) -> None:
    found = blocks(PARTS[part])
    cells = [text for kind, text in found if kind == "python"]
    (done,) = finish([start_notebook(tmp_path, cells)], timeout=120)
    printed = iter(json.loads(stdout_of(done)))
    last = ""
    for kind, text in found:
        if kind == "python":
            last = next(printed)
        else:  # Old releases of optax warn, too.
            assert text.strip() in last
