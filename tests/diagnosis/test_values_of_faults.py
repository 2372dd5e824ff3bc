"""``check_values`` finds the faults of value that the patches list, and no others."""

from __future__ import annotations

import functools

import optax
import pytest

from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches import load
from support.processes import stock_and_patched
from support.value_verdicts import AFFECTED, RIGHT


def _is_in_release(name: str) -> bool:
    patch_id, _, fault_id = name.partition(".")
    assert fault_id in {fault.id for fault in load(patch_id).faults}, f"{name} is misspelt"
    faults = load(patch_id).faults_on(Release(optax.__version__, tested=True))
    return fault_id in {fault.id for fault in faults}


@functools.cache
def verdicts() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    return stock_and_patched("support.value_verdicts")


@pytest.mark.parametrize("name", AFFECTED)
def test_a_fault_is_found_on_stock_and_gone_with_the_patches(name: str) -> None:
    if not _is_in_release(name):
        pytest.skip(f"by the table of the patch, stock optax {optax.__version__} has no {name}")
    stock, patched = (of_all[name] for of_all in verdicts())
    assert stock
    assert patched == []


@pytest.mark.parametrize("name", RIGHT)
def test_no_false_alarm_where_stock_is_right(name: str) -> None:
    stock, _ = verdicts()
    assert stock[name] == []
