"""Count the traces, the float64 arrays and the bytes of the state in steps of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optax
import pytest
from packaging.version import Version

from support.processes import PATCHED, STOCK, finish, start, stdout_of

pytestmark = pytest.mark.thorough
RELEASE = Version(optax.__version__)
SCALARS = 64
"""Bytes that float32 scalars may take in addition to half-precision scalars of stock."""


COUNTS = Path(__file__).parents[2] / "benchmarks" / "counts.py"


@pytest.fixture(scope="module")
def both() -> Any:
    done = finish([start(COUNTS, **way) for way in (STOCK, PATCHED)])
    return [json.loads(stdout_of(of)) for of in done]


@pytest.fixture(scope="module")
def stock(both: Any) -> dict[str, Any]:
    found: dict[str, Any] = both[0]
    return found


@pytest.fixture(scope="module")
def patched(both: Any) -> dict[str, Any]:
    found: dict[str, Any] = both[1]
    return found


@pytest.mark.rule("C1")
def test_a_step_is_traced_once(patched: dict[str, Any]) -> None:
    assert {name: found.get("traces") for name, found in patched.items()} == dict.fromkeys(
        patched, 1
    )


@pytest.mark.rule("C3")
def test_no_array_is_computed_in_float64(patched: dict[str, Any]) -> None:
    assert [name for name, found in patched.items() if found["float64"]] == []


def test_the_state_does_not_grow(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    for name, found in patched.items():
        # Up to 0.2.7, stock accumulates 1,000 half-precision gradients in half precision.
        narrow = name.startswith("MultiSteps") and name.endswith("float16")
        wider = 2000 if narrow and Version("0.2.8") > RELEASE else 0
        assert found["state_bytes_later"] == found["state_bytes"], name
        stocks = stock[name].get("state_bytes_later", found["state_bytes"])
        assert found["state_bytes_later"] <= stocks + wider + SCALARS, name


@pytest.mark.skipif(not hasattr(optax, "lbfgs"), reason="this release has none")
def test_stock_traces_lbfgs_twice(stock: dict[str, Any]) -> None:
    assert stock["lbfgs float32"]["traces"] == 2


def test_stock_fails_one_of_these_tests(stock: dict[str, Any]) -> None:
    """On every release, stock traces a step twice, computes in float64, or raises."""
    worse = [
        name
        for name, found in stock.items()
        if "raises" in found or found["float64"] or found["traces"] > 1
    ]
    assert worse
