"""A script of a user, in the current folder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.check_script import SCRIPT
from support.processes import write_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A script in the current folder; what its import changes is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    before = set(sys.modules)
    yield write_script(tmp_path, SCRIPT, "train.py")
    for name in set(sys.modules) - before:
        del sys.modules[name]
