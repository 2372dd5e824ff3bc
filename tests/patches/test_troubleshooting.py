"""The page that finds a patch by its error says what stock says, fault by fault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import optax
import pytest

from optax_dtypefix import patches
from optax_dtypefix._release import Release

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES: dict[str, list[str]] = {}
"""For each fault that the page names, the messages under which it does."""
for section in PAGE.split("\n## ")[1:]:
    heading, _, body = section.partition("\n")
    for name in re.findall(r"`(\w+\.\w+)`", body):
        if name.partition(".")[0] in patches.IDS:
            MESSAGES.setdefault(name, []).append(heading)


@pytest.mark.parametrize("name", MESSAGES)
def test_stock_says_what_the_page_says(name: str, outcome_of: Any) -> None:
    patch_id, _, fault_id = name.partition(".")
    (fault,) = [fault for fault in patches.load(patch_id).faults if fault.id == fault_id]
    if not Release(optax.__version__).within(fault.releases):
        pytest.skip("not a fault of this release")
    outcome = outcome_of("outcomes.py", OPTAX_DTYPEFIX="off")[name]
    if "Error" not in outcome:
        pytest.skip("stock does not raise here: its state drifts")
    assert any(message in outcome for message in MESSAGES[name]), outcome


def test_the_page_names_many_faults_and_every_symptom_has_a_patch() -> None:
    assert len(MESSAGES) > 25
    *_, symptoms = PAGE.split("\n## ")
    named = set(re.findall(r"`(\w+)`[^|]*\|$", symptoms, flags=re.MULTILINE))
    assert named <= {*patches.IDS, "check"}
