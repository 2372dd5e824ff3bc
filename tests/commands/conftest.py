from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.processes import Python

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run Python in an empty folder."""
    return Python(tmp_path)


@pytest.fixture
def command(tmp_path: Path) -> Python:
    """Run ``python -m optax_dtypefix`` in an empty folder."""
    return Python(tmp_path, ("-m", "optax_dtypefix"))
