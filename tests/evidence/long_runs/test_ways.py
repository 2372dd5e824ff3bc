"""A pure half-precision run ends as a float32 run does, with the import alone."""

from __future__ import annotations

from typing import Any

import pytest

from support.processes import STOCK, json_of

ARRAYS = {
    "momo": 1,
    "momo_adam": 2,
    "inject_hyperparams(adam)": 2,
    "dog": 1,
    "reduce_on_plateau": 0,
}
"""For each optimizer, how many arrays of the size of the params its state has."""


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str, str], Any]:
    ways = ("half", "master_weights", "float32")
    module = "evidence.long_runs.ways"
    results = json_of(module, "--cases", *ARRAYS, "--ways", *ways, XLA_FLAGS="")
    stock = json_of(module, "--cases", *ARRAYS, "--ways", "half", XLA_FLAGS="", **STOCK)
    results += [{**result, "way": "stock"} for result in stock]
    return {(result["case"], result["dtype"], result["way"]): result for result in results}


@pytest.mark.parametrize("name", ARRAYS)
def test_loss_is_that_of_float32(name: str, found: Any) -> None:
    single = found[name, "float32", "float32"]["loss"]
    assert not found[name, "bfloat16", "stock"]["loss"] <= 1.02 * single  # Or NaN.
    for way in ("half", "master_weights"):
        assert found[name, "bfloat16", way]["loss"] == pytest.approx(single, rel=0.02), way


@pytest.mark.parametrize("name", ARRAYS)
def test_bytes_a_param(name: str, found: Any) -> None:
    expected = {
        ("bfloat16", "half"): 2 + 2 * ARRAYS[name],
        ("bfloat16", "master_weights"): 2 + 4 + 4 * ARRAYS[name],
        ("float32", "float32"): 4 + 4 * ARRAYS[name],
    }
    for key, size in expected.items():
        assert size <= found[(name, *key)]["bytes"] <= size + 0.1, key  # And scalars.
