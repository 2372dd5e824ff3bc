"""3,000 steps in half precision: with the shim the statistics are right, and the loss falls.

Each test fails on stock optax 0.2.8, and asserts that it does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evidence.long_runs.cases import CASES, Case
from evidence.long_runs.reference_run import losses_in
from support.processes import stock_and_patched

RUNS = [(case, dtype) for case in CASES for dtype in case.dtypes]
IDS = [f"{case.name} {dtype}" for case, dtype in RUNS]


@pytest.fixture(scope="session")
def both() -> Any:
    return stock_and_patched("evidence.long_runs.runs", XLA_FLAGS="")


# Moments are at least the smallest float16 number: updates for tiny gradients are too small.
MORE = {"bfloat16": 1.15, "float16": 1.7}

UNSTABLE = {"prodigy", "dadapt_adamw"}
"""Their float32 loss ends far from that in float64, or from that of other initial params."""

LIMITS = {"estim_lr": 0.02, "numerator_weighted": 0.04}
"""The numerator grows with the square of the estimate, and crosses zero.

With the batches in eight other orders its worst error in bfloat16 is 2.9 % in prodigy and 2.7 % in
dadapt_adamw, that of the estimate 1.8 % and 1.0 %. In 1.2.0 it was 3.1 % and 4.0 %, and that of the
estimate 0.9 % and 0.8 %: the steps had one order for 656 steps, which locked to epochs of 41 steps.
"""


def faults(run: dict[str, Any], reference: list[float], case: Case, dtype: str) -> list[str]:
    """List what is wrong with a run."""
    if "error" in run:
        return [run["error"]]
    found = [
        f"{name} is off by {error:.2%} at some step"
        for name, error in run["errors"].items()
        if not error <= LIMITS.get(name, 0.01)
    ]
    last, wanted = np.mean(run["losses"][-5:]), np.mean(reference[-5:])
    if not (case.name in UNSTABLE and last < 0.1) and not last <= MORE[dtype] * wanted:
        found.append(f"the loss is {last:.4g} at the end, not {wanted:.4g}")
    return found


@pytest.mark.parametrize(("case", "dtype"), RUNS, ids=IDS)
def test_3000_steps(case: Case, dtype: str, both: Any) -> None:
    stock, patched = (runs[f"{case.name} {dtype}"] for runs in both)
    reference = losses_in(dtype, case)
    assert faults(patched, reference, case, dtype) == []
    assert faults(stock, reference, case, dtype) != []
