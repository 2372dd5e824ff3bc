"""docs/troubleshooting.md has the error messages of stock optax, each with its fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from optax_dtypefix import patches
from support.outcomes import faults
from support.processes import json_of

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES: dict[str, list[str]] = {}
"""The error messages under which the page names a fault: a heading, and what another jax says."""
for section in PAGE.split("\n## ")[1:]:
    heading, _, body = section.partition("\n")
    messages = [heading, *re.findall(r"^> (.*)$", body, re.MULTILINE)]
    for name in re.findall(r"`(\w+\.\w+)`", body):
        if name.partition(".")[0] in patches.IDS:
            MESSAGES.setdefault(name, []).extend(messages)


def test_each_error_of_stock_leads_to_its_patch() -> None:
    outcomes = json_of("support.outcomes", "all", *faults(), OPTAX_DTYPEFIX="off")["all"]
    raised = {
        name: said for name, (said, _) in outcomes.items() if re.match(r"\w+Error: ", said or "")
    }
    assert len(raised) > 5
    lost = {
        name: said
        for name, said in raised.items()
        if not any(message in said for message in MESSAGES.get(name, []))
    }
    assert lost == {}, (
        "docs/troubleshooting.md has no such heading, or does not name the fault there"
    )


def test_every_fault_on_the_page_exists() -> None:
    assert set(MESSAGES) <= set(faults())


def test_every_symptom_on_the_page_has_a_patch() -> None:
    assert len(MESSAGES) > 25
    *_, symptoms = PAGE.split("\n## ")
    named = set(re.findall(r"`(\w+)`[^|]*\|$", symptoms, flags=re.MULTILINE))
    assert named <= {*patches.IDS, "check"}


def test_patches_and_faults_are_links_to_their_pages() -> None:
    links = re.findall(r"\[`([\w.]+)`\]\(patches/(\w+)\.md\)", PAGE)
    assert [name for name, page in links if name.partition(".")[0] != page] == []
    linked = {name for name, _ in links}
    *_, symptoms = PAGE.split("\n## ")
    last_cells = "".join(re.findall(r"\| ([^|]*) \|$", symptoms, re.MULTILINE))
    patches_named = {name for name in re.findall(r"`(\w+)`", last_cells) if name in patches.IDS}
    assert {*MESSAGES} | patches_named <= linked
    plain = re.findall(r"(?<!\[)`(\w+\.\w+)`", PAGE) + re.findall(r"(?<!\[)`(\w+)`", last_cells)
    assert [name for name in plain if name.partition(".")[0] in patches.IDS] == []


@pytest.mark.parametrize(
    "words",
    [
        "training stopped improving after one bad batch",
        "restored checkpoint gives NaN",
        "scan carry dtype mismatch",
        "equinox model is not a valid JAX type",
    ],
)
def test_plain_words_lead_to_one_entry(words: str) -> None:
    """A search finds what has all words: a row of the last table, or a section above it."""
    *sections, symptoms = PAGE.split("\n## ")
    entries = (*sections, *symptoms.splitlines())
    assert [entry for entry in entries if all(word in entry for word in words.split())]
