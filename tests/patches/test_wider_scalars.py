"""The contract lists all scalars that are wider than on stock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.processes import stock_and_patched

pytestmark = pytest.mark.rule("C4", "C6")

CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"


def test_the_contract_lists_all_scalars_that_are_wider_than_on_stock() -> None:
    _, _, section = CONTRACT.read_text(encoding="utf-8").partition(
        "\n## Scalars wider than stock's"
    )
    listed = set(re.findall(r"`([\w.]+)`", section.partition("\n## ")[0]))
    stock, patched = stock_and_patched("support.scalars")
    wider = {
        (name, field)
        for name, fields in patched.items()
        for field, dtype in fields.items()
        if dtype != stock[name][field]
    }
    assert {"sgd", "contrib.reduce_on_plateau"} & patched.keys()
    assert {field for _, field in wider} <= listed | {"best_value", "avg_value"}
