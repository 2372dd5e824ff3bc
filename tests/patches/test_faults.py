"""Each fault of each patch: stock fails where the table says so, the patched function nowhere."""

from __future__ import annotations

import importlib
from typing import Any

import optax
import pytest

from optax_dtypefix import patches
from optax_dtypefix._engine.release import Release

RELEASE = Release(optax.__version__)
FAULTS = [(patch_id, fault) for patch_id in patches.IDS for fault in patches.load(patch_id).faults]
IDS = [f"{patch_id}.{fault.id}" for patch_id, fault in FAULTS]
OPT_IN = ",".join(patch_id for patch_id in patches.IDS if patches.load(patch_id).opt_in)


@pytest.mark.parametrize(("patch_id", "fault"), FAULTS, ids=IDS)
def test_stock_fails_just_where_the_table_says(patch_id: str, fault: Any, outcome_of: Any) -> None:
    outcome = outcome_of("support.outcomes", OPTAX_DTYPEFIX="off")[f"{patch_id}.{fault.id}"]
    if RELEASE.within(fault.releases):
        assert outcome is not None, f"stock optax {RELEASE} has no such fault: the table is wrong"
    else:
        assert outcome is None, f"stock optax {RELEASE} has it too: the table is too narrow"


@pytest.mark.parametrize(("patch_id", "fault"), FAULTS, ids=IDS)
def test_a_patch_mends_its_faults_alone(patch_id: str, fault: Any, outcome_of: Any) -> None:
    assert outcome_of("support.outcomes", "alone")[f"{patch_id}.{fault.id}"] is None


@pytest.mark.parametrize(("patch_id", "fault"), FAULTS, ids=IDS)
def test_all_patches_together_mend_it(patch_id: str, fault: Any, outcome_of: Any) -> None:
    outcome = outcome_of("support.outcomes", OPTAX_DTYPEFIX_ENABLE=OPT_IN)
    assert outcome[f"{patch_id}.{fault.id}"] is None


def test_every_patch_says_everything_about_itself() -> None:
    for patch_id in patches.IDS:
        patch = patches.load(patch_id)
        assert patch.id == patch_id
        assert patch.summary
        words = " ".join(
            (importlib.import_module(f"{patches.__name__}.{patch_id}").__doc__ or "").split()
        )
        assert patch.upstream or "upstream issue was found" in words, "or say that there is none"
        assert all(fault.summary and fault.releases for fault in patch.faults)
        # Without a probe the patch could never act on a release outside the table.
        assert any(fault.abstract or fault.probe for fault in patch.faults)
