"""The report of a run names the patches that the run needed.

``RUNS`` in support/reached.py says which ones. That each fault reaches its patch is in
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
def reached(outcome_of: Any) -> Any:
    return outcome_of("support.reached")


@pytest.mark.parametrize("name", RUNS)
def test_the_report_names_the_patches_that_a_run_needs(name: str, reached: Any) -> None:
    if name not in reached:
        assert optax.__version__ != TESTED[-1], f"{name} is misspelt"
        pytest.skip("this release has no such function")
    assert set(reached[name]) >= RUNS[name].needs & APPLIED


@pytest.mark.parametrize("name", RUNS)
def test_moments_are_patched_only_where_they_are_in_half_precision(name: str, reached: Any) -> None:
    if name not in reached:
        pytest.skip("this release has no such function")
    moments = {"bfloat16_moments", "float16_eps"}
    assert moments.intersection(reached[name]) == moments & RUNS[name].needs & APPLIED


def test_each_patch_is_reached(reached: Any) -> None:
    assert {patch for patches in reached.values() for patch in patches} == APPLIED
