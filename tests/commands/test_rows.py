"""Rows are printed once, as they come."""

from __future__ import annotations

import re

import pytest

from optax_dtypefix._commands.rows import Rows


def test_rows_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Rows()
    for some in (["a"], ["a"], ["a", "b", "c"]):
        rows.show(some)
    assert capsys.readouterr().out == "a\nb\nc\n"
    assert re.fullmatch(r"1 check in \d+ s", rows.count(1, "check"))
    assert re.fullmatch(r"2 checks in \d+ s", rows.count(2, "check"))
