"""Deprecated names of optax warn as in stock: once, for the right line, or as an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import optax
import pytest
from packaging.version import Version

pytestmark = pytest.mark.skipif(
    Version(optax.__version__) < Version("0.2.5"), reason="it came with optax 0.2.5"
)

SCRIPT = """
import optax_dtypefix
import optax
for _ in range(2):
    optax.differentially_private_aggregate
    optax.tree_utils.tree_l2_norm
from optax import dpsgd
assert not hasattr(optax, "never_there")
"""


def run(script: Path, shim: str, filters: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", filters, str(script)],
        env={**os.environ, "OPTAX_DTYPEFIX": shim, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("filters", ["default::DeprecationWarning:__main__", "error:optax."])
def test_deprecated_names_warn_as_in_stock(tmp_path: Path, filters: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    stock, patched = (run(tmp_path / "train.py", shim, filters) for shim in ("off", "on"))
    (last,) = stock.stderr.splitlines()[-1:]
    assert "optax.differentially_private_aggregate is deprecated" in stock.stderr
    assert patched.returncode == stock.returncode == (1 if filters.startswith("error") else 0)
    assert patched.stderr.splitlines()[-1] == last
    if stock.returncode == 0:
        assert patched.stderr == stock.stderr
