"""The report of a run names the patches that the run needed, and no others.

``RUNS`` in support/reached.py says which ones. That each fault makes its patch count a change is in
test_faults.py.
"""

from __future__ import annotations

from typing import Any

import optax
import pytest

import optax_dtypefix
from optax_dtypefix.patches.releases import TESTED
from support.reached import RUNS

APPLIED = {row.id for row in optax_dtypefix.status() if row.state is optax_dtypefix.State.APPLIED}


@pytest.fixture(scope="module")
def report(outcome_of: Any) -> Any:
    return outcome_of("support.reached")


@pytest.mark.parametrize("name", RUNS)
def test_the_report_names_the_patches_that_a_run_needs(name: str, report: Any) -> None:
    if name not in report["changed"]:
        assert optax.__version__ != TESTED[-1], f"{name} is misspelt"
        pytest.skip("this release has no such function")
    assert set(report["changed"][name]) == RUNS[name].changes & APPLIED


def test_a_patch_may_be_reached_and_change_nothing(report: Any) -> None:
    assert "float16_eps" in report["changed"]["float16 adam"]
    assert report["changed"]["float32 adam"] == []
    assert set(report["reached"]) == APPLIED
