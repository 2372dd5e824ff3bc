"""Eager steps leave no more arrays to the garbage collector than those of stock."""

from __future__ import annotations

import pytest

from support.live_bytes import compare
from support.processes import stock_and_patched
from support.thorough import thorough_but

pytestmark = pytest.mark.rule("C0")

MORE = ("apply_if_finite", "schedule_free", "inject_hyperparams", "adam")


@pytest.mark.parametrize(
    "names", thorough_but([("MultiSteps",)], [("MultiSteps",), ("MultiSteps", *MORE)])
)
def test_eager_steps_leave_no_more_bytes_than_stock(names: tuple[str, ...]) -> None:
    """All transformations are in ``tests/evidence/eager``."""
    stock, patched = stock_and_patched("support.live_bytes", *names)
    assert "MultiSteps of drifting, mixed" in stock
    compare(stock, patched)
