"""No effect where none is wanted: identical programs, or identical bits where a value is mended."""

from __future__ import annotations

from typing import Any

import pytest

import optax_dtypefix
from support.programs import CASES

MENDED_IN_VALUES = ("zero_nans", "prodigy", "distance_estimates")
MENDED_IN_DTYPES = [cases.__name__ for cases in CASES if cases.__name__ not in MENDED_IN_VALUES]


@pytest.fixture(scope="module")
def stock(outcome_of: Any) -> Any:
    return outcome_of("support.programs", OPTAX_DTYPEFIX="off")


@pytest.fixture(scope="module")
def patched(outcome_of: Any) -> Any:
    return outcome_of("support.programs")


@pytest.mark.parametrize("patch_id", MENDED_IN_DTYPES)
def test_the_compiled_program_is_stocks(patch_id: str, stock: Any, patched: Any) -> None:
    for case, expected in stock[patch_id].items():
        assert patched[patch_id][case]["program"] == expected["program"], case


@pytest.mark.parametrize("patch_id", [*MENDED_IN_DTYPES, *MENDED_IN_VALUES])
def test_the_bits_are_stocks(patch_id: str, stock: Any, patched: Any) -> None:
    for case, expected in stock[patch_id].items():
        assert patched[patch_id][case]["bits"] == expected["bits"], case


def test_states_have_stocks_classes_fields_and_shapes(stock: Any, patched: Any) -> None:
    """So a checkpoint written with the one restores with the other."""
    assert patched["states"] == stock["states"]


@pytest.mark.skipif(
    not optax_dtypefix.is_applied("zero_nans"), reason="before 0.1.8 there is nothing to mend"
)
def test_a_mended_value_shows_in_the_program(stock: Any, patched: Any) -> None:
    """So the comparison above can tell programs apart, and the two processes differ at all."""
    for case, expected in stock["zero_nans"].items():
        assert patched["zero_nans"][case]["program"] != expected["program"], case


def test_only_a_mended_value_shows_in_the_program(stock: Any, patched: Any) -> None:
    for case, expected in stock["distance_estimates"].items():
        same = patched["distance_estimates"][case]["program"] == expected["program"]
        assert same != case.startswith("dadapt_adamw"), case
