"""Eager steps of all transformations: stock's bits in float32, and nothing more is compiled."""

from __future__ import annotations

from support.eager_steps import compare
from support.processes import stock_and_patched


def test_eager_steps_of_all_transformations() -> None:
    assert compare(*stock_and_patched("support.eager_steps")) == ([], [])
