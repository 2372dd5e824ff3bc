"""Compare patched programs with stock where stock is right: they are identical.

Where a patch fixes a value, the programs differ, and the results have identical bits. The cases
are ``PROGRAMS`` in the test file of each patch.
"""

from __future__ import annotations

from typing import Any

import pytest

import optax_dtypefix
from optax_dtypefix.patches import IDS, load
from support.patch_cases import programs

FEW = ("prodigy", "fromage", "reduce_on_plateau", "sums")
"""In the README's command: one of each sort. test_transformations.py compares all functions."""


def having(*same: str) -> Any:
    """Run a test for the cases of this sort, with the patches that have one on this release."""
    cases = {
        patch_id: [n for n, case in programs(patch_id).items() if case.same in same]
        for patch_id in IDS
    }
    return pytest.mark.parametrize(
        ("patch_id", "cases"),
        [
            pytest.param(
                patch_id, names, id=patch_id, marks=[pytest.mark.thorough] * (patch_id not in FEW)
            )
            for patch_id, names in cases.items()
            if names
        ],
    )


@pytest.fixture(scope="module")
def stock(outcome_of: Any, selected: Any) -> Any:
    return outcome_of("support.programs", *selected("patch_id"), XLA_FLAGS="", OPTAX_DTYPEFIX="off")


@pytest.fixture(scope="module")
def patched(outcome_of: Any, selected: Any) -> Any:
    opt_in = ",".join(patch_id for patch_id in IDS if load(patch_id).opt_in)
    variables = {"XLA_FLAGS": "", "OPTAX_DTYPEFIX_ENABLE": opt_in}
    return outcome_of("support.programs", *selected("patch_id"), **variables)


@pytest.mark.rule("C5")
@having("program", "compiled")
def test_programs_are_identical(patch_id: str, cases: list[str], stock: Any, patched: Any) -> None:
    for case in cases:
        assert patched[patch_id][case]["program"] == stock[patch_id][case]["program"], case


@pytest.mark.rule("C5")
@having("compiled", "bits")
def test_results_have_identical_bits(
    patch_id: str, cases: list[str], stock: Any, patched: Any
) -> None:
    for case in cases:
        assert patched[patch_id][case]["bits"] == stock[patch_id][case]["bits"], case


@pytest.mark.rule("C6")
@having("program", "compiled", "bits", "state")
def test_states_have_the_same_classes_fields_and_shapes(
    patch_id: str, cases: list[str], stock: Any, patched: Any
) -> None:
    """So a checkpoint written with the one restores with the other."""
    for case in cases:
        assert patched[patch_id][case]["state"] == stock[patch_id][case]["state"], case


@having("bits")
def test_a_fixed_value_shows_in_the_program(
    patch_id: str, cases: list[str], stock: Any, patched: Any
) -> None:
    """So the comparison of programs can fail, and the two processes differ."""
    row = optax_dtypefix.status()[patch_id]
    if row.state in (optax_dtypefix.State.NOT_NEEDED, optax_dtypefix.State.MISSING):
        pytest.skip(f"{patch_id}: {row.reason}")
    for case in cases:
        assert patched[patch_id][case]["program"] != stock[patch_id][case]["program"], case
