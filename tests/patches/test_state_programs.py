"""What a user's program reads, sets or casts in a state has stock's dtype, and stock's effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.processes import stock_and_patched
from support.state_programs import PROGRAMS

pytestmark = pytest.mark.rule("C6")


@pytest.fixture(scope="module")
def results() -> tuple[dict[str, Any], dict[str, Any]]:
    # What is rounded up or down differs from stock's by a unit, as it should.
    return stock_and_patched("support.state_programs", OPTAX_DTYPEFIX_DISABLE="stochastic_rounding")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_it_gives_on_stock(name: str, results: Any) -> None:
    stock, patched = (found[name] for found in results)
    assert not isinstance(stock, str), stock
    assert not isinstance(patched, str), patched
    assert [dtype for dtype, _ in patched] == [dtype for dtype, _ in stock]
    for (_, number), (_, wanted) in zip(patched, stock):
        # Older compilers skip the rounding between two operations, here others than there.
        np.testing.assert_allclose(number, wanted, rtol=2.0**-7)
