"""Eager steps of all transformations: stock's bits, kernels, lifetimes, whatever ran before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support import eager_steps, history, live_bytes
from support.opt_ins import OPT_INS
from support.processes import stock_and_patched

if TYPE_CHECKING:
    from pathlib import Path


def test_eager_steps_of_all_transformations() -> None:
    assert eager_steps.compare(*stock_and_patched("support.eager_steps")) == ([], [])


def test_eager_steps_of_all_transformations_leave_no_more_bytes() -> None:
    stock, patched = stock_and_patched("support.live_bytes")
    assert len(stock) > 100
    live_bytes.compare(stock, patched)


@pytest.mark.parametrize("enabled", ["", OPT_INS], ids=["default", "opt-in"])
def test_steps_of_all_transformations_depend_on_their_arguments_alone(
    enabled: str, tmp_path: Path
) -> None:
    variables = {"OPTAX_DTYPEFIX_ENABLE": enabled} if enabled else {}
    assert history.compare(tmp_path / "states.pickle", **variables) > 100
