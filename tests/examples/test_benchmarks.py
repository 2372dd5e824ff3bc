"""What the benchmarks write: a record of medians and counts, and a check of the device."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import optax
import pytest

from support.processes import CACHE, run, stdout_of
from support.recorded import ROOT

if TYPE_CHECKING:
    from pathlib import Path

sys.path.append(str(ROOT / "benchmarks"))
from summary import count, steps

RATIO, SECONDS = [0.9, 1.0, 1.2], [2.0, 2.1, 2.5]


def way(program: str, **more: Any) -> dict[str, Any]:
    return {"program": program, "traces": 1, "state_bytes_later": 8, "float64": False, **more}


def found(step: str, size: int, stock: Any, patched: Any, **times: Any) -> dict[str, Any]:
    return {
        "step": step,
        "patch": "",
        "size": size,
        "ways": {"stock": stock, "patched": patched},
        "step_s": {"patched": SECONDS},
        "ratio": RATIO,
        **times,
    }


MEASURED = [
    found("same", 10_000, way("a"), way("a")),
    found("common", 10_000, way("a"), way("a")),
    found("changed", 10_000, way("a"), way("a")),
    found("changed", 50_000_000, way("a", traces=2, float64=True), way("b", state_bytes_later=9)),
    found("fixed", 10_000, {"raises": "TypeError"}, way("b")),
    found("fixed", 1_000_000, {"raises": "the process died"}, {"raises": "the process died"}),
    found("fixed", 50_000_000, way("a"), {"raises": "TypeError"}),
]


def test_a_record_keeps_the_steps_that_the_page_shows() -> None:
    times = {row["step"]: row["times"] for row in steps(MEASURED, {"common"})}
    assert times == {
        "common": {"1e4": "same"},
        "changed": {"1e4": "same", "5e7": {"ratio": RATIO}},
        "fixed": {"1e4": {"seconds": SECONDS}, "1e6": "dies", "5e7": "raises"},
    }


def test_a_record_counts_all_steps() -> None:
    assert count(MEASURED) == {
        "steps": 7,
        "run": 4,
        "run_patched_only": 1,
        "same": 3,
        "traces": [1, 0],
        "state_bytes_later": [0, 1],
        "float64": [1, 0],
    }


@pytest.mark.skipif(not hasattr(optax, "lion"), reason="before 0.1.5 optax has no lion")
def test_the_check_of_the_device_runs_on_the_cpu(tmp_path: Path) -> None:
    record = tmp_path / "device.json"
    few = ("--params", "4096", "--trained", "2", "--only", "lion")
    module = ("-m", "benchmarks", "device", record)
    printed = stdout_of(run(*module, *few, "--limit", "600", folder=ROOT, timeout=600, **CACHE))
    checked = json.loads(record.read_text("utf-8"))
    assert checked["errors"] == {}
    steps = checked["steps"]
    assert steps["lion, float32"]["same"]
    assert not steps["lion, bfloat16"]["same"]
    for name in ("lion, bfloat16", "lion, float16", "transformer, lion, bfloat16"):
        assert {*steps[name]} == {"stock", "patched", "to nearest", "same"}
        for side in ("stock", "patched", "to nearest"):
            assert steps[name][side]["ms"][1] > 0
        assert f"| {name} |" in printed
        assert f"| {name}, rounded to nearest |" in printed
    # The device is the CPU itself.
    assert len(checked["bits"]) == 4
    for shares in checked["bits"].values():
        assert shares == {"equal_params": 1.0, "equal_state": 1.0}
    assert all(run["loss"] > 0 for run in checked["training"].values())
