"""Eager steps of all transformations: stock's bits, kernels and lifetimes of arrays."""

from __future__ import annotations

from support import eager_steps, live_bytes
from support.processes import stock_and_patched


def test_eager_steps_of_all_transformations() -> None:
    assert eager_steps.compare(*stock_and_patched("support.eager_steps")) == ([], [])


def test_eager_steps_of_all_transformations_leave_no_more_bytes() -> None:
    stock, patched = stock_and_patched("support.live_bytes")
    assert len(stock) > 100
    live_bytes.compare(stock, patched)
