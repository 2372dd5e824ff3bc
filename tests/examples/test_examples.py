"""Each example trains with the shim, and fails without it on an affected release."""

from __future__ import annotations

import dataclasses
import subprocess
from importlib.metadata import version

import pytest
from packaging.specifiers import SpecifierSet

from optax_dtypefix.patches.releases import TESTED
from support import processes

EXAMPLES = processes.TESTS.parent / "examples"
OPTAX = version("optax")


@dataclasses.dataclass(frozen=True)
class Example:
    """An example; ``without_shim`` maps releases to the message of stock optax there."""

    script: str
    needs: str
    releases: str
    without_shim: dict[str, str]


TABLE = (
    Example(
        "bf16_schedule_free.py",
        "schedule_free",
        ">=0.2.3",
        {"==0.2.3": "TypeError", ">=0.2.4": "the average misses most of the steps"},
    ),
    Example(
        "x64_lbfgs_scan.py",
        "lbfgs",
        ">=0.2.3",
        {"<0.2.5": "TypeError", ">=0.2.5": "the step was compiled 2 times"},
    ),
    Example("x64_prodigy.py", "prodigy", ">=0.1.8", {"<0.2.4": "TypeError"}),
    Example("bf16_fromage_warmup.py", "fromage", "", {"": "TypeError"}),
    Example(
        "nan_batch.py",
        "zero_nans",
        "",
        {">=0.1.8,<0.2.0": "TypeError", ">=0.2.0": "accuracy is below"},
    ),
)


def within(releases: str) -> bool:
    return SpecifierSet(releases).contains(OPTAX, prereleases=True)


def run(example: Example, **variables: str) -> subprocess.CompletedProcess[str]:
    if not within(example.releases):
        pytest.skip(f"optax {OPTAX} has no {example.needs}: it came with {example.releases}")
    return processes.run(EXAMPLES / example.script, timeout=300, **variables)


def test_every_example_is_in_the_table():
    scripts = {path.name for path in EXAMPLES.glob("[!_]*.py")}
    assert scripts == {example.script for example in TABLE}


@pytest.mark.parametrize("example", TABLE, ids=lambda example: example.script)
def test_trains_with_the_shim(example: Example):
    done = run(example, OPTAX_DTYPEFIX_STRICT="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test loss" in done.stdout


@pytest.mark.parametrize("example", TABLE, ids=lambda example: example.script)
def test_fails_without_the_shim(example: Example):
    if not within(f"<={TESTED[-1]}"):
        pytest.skip(f"optax {OPTAX} is newer than the table and may have fixed the faults")
    done = run(example, OPTAX_DTYPEFIX="off")
    expected = [text for releases, text in example.without_shim.items() if within(releases)]
    if expected:
        assert done.returncode == 1, done.stdout + done.stderr
        assert expected[0] in done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr
