"""Deprecated names of optax warn as in stock: once, for the right line, or as an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import optax
import pytest
from packaging.version import Version

from support.processes import PATCHED, STOCK, finish, start, write_script
from support.thorough import one_of

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize(
    "filters", one_of(2, ["default::DeprecationWarning:__main__", "error:optax."])
)
def test_deprecated_names_warn_as_in_stock(tmp_path: Path, filters: str) -> None:
    script = write_script(tmp_path, SCRIPT)
    stock, patched = finish([start("-W", filters, script, **way) for way in (STOCK, PATCHED)])
    (last,) = stock.stderr.splitlines()[-1:]
    assert "optax.differentially_private_aggregate is deprecated" in stock.stderr
    assert patched.returncode == stock.returncode == (1 if filters.startswith("error") else 0)
    assert patched.stderr.splitlines()[-1] == last
    if stock.returncode == 0:
        assert patched.stderr == stock.stderr
