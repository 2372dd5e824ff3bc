"""Eager steps in float32 have stock's bits, and no eager step compiles more than on stock.

``tests/evidence/eager`` does this for all transformations. Here are those whose patch computes
otherwise than stock, or that count with Python numbers.
"""

from __future__ import annotations

import optax
import pytest

from support.eager_steps import compare
from support.processes import stock_and_patched

NAMES = tuple(
    f"contrib.{name}"
    for name in ("prodigy", "dadapt_adamw")
    if hasattr(getattr(optax, "contrib", None), name)
)


@pytest.mark.skipif(not NAMES, reason="they came with optax 0.1.8")
def test_eager_steps_have_stocks_bits_and_compile_no_more() -> None:
    assert compare(*stock_and_patched("support.eager_steps", *NAMES)) == ([], [])
