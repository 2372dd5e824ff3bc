"""Eager steps leave no more arrays to the garbage collector than those of stock."""

from __future__ import annotations

import pytest

from support.live_bytes import compare
from support.processes import stock_and_patched

pytestmark = pytest.mark.rule("C0")

WRAPPERS = ("MultiSteps", "apply_if_finite", "schedule_free", "inject_hyperparams", "adam")


@pytest.mark.thorough
def test_eager_steps_leave_no_more_bytes_than_stock() -> None:
    """All transformations are in ``tests/evidence/eager``."""
    stock, patched = stock_and_patched("support.live_bytes", *WRAPPERS)
    assert "MultiSteps of drifting, mixed" in stock
    compare(stock, patched)
