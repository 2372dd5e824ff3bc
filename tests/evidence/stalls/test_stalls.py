"""Moments in half precision do not stall over 1,200 steps, and are never worse than on stock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from evidence.stalls.measure import KINDS, errors
from support.processes import PATCHED, STOCK, finish, start, stdout_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def measure(folder: Path, half: str, *names: str) -> tuple[Any, Any, Any]:
    """Return the last updates of a float64 reference, of stock and of patched optax."""
    ways = {
        "reference": {**STOCK, "JAX_ENABLE_X64": "1"},
        "stock": STOCK,
        "patched": PATCHED,
    }
    running = [
        start("-m", "evidence.stalls.measure", half, folder / f"{way}.npz", *names, **variables)
        for way, variables in ways.items()
    ]
    for done in finish(running):
        stdout_of(done)
    reference, stock, patched = (dict(np.load(folder / f"{way}.npz")) for way in ways)
    return reference, stock, patched


def cells(measured: tuple[Any, Any, Any]) -> Iterator[tuple[str, str, float, float]]:
    """Yield each case and kind, with the errors of stock and of patched optax."""
    reference, stock, patched = measured
    for case, exact in reference.items():
        raised = np.full(len(KINDS), np.inf)
        was = errors(stock[case], exact) if case in stock else raised
        got = errors(patched[case], exact) if case in patched else raised
        for kind, *pair in zip(KINDS, was, got):
            yield (case, kind, *pair)


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def measured(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return measure(tmp_path_factory.mktemp("stalls"), request.param)


def test_no_cell_is_worse_than_on_stock(measured: Any) -> None:
    found = [
        f"{case}, {kind}: {was:.4f} {got:.4f}"
        for case, kind, was, got in cells(measured)
        if got > 1.25 * was + 0.006
    ]
    assert found == []


def test_no_moment_stalls(measured: Any) -> None:
    found = [
        f"{case}, {kind}: {was:.4f} {got:.4f}"
        for case, kind, was, got in cells(measured)
        if got > 0.02
    ]
    assert found == []
