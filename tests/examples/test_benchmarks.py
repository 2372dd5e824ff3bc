"""What the benchmarks write: a record of medians and counts, and a check of the device."""

from __future__ import annotations

import importlib.util
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
from programs import Cost, collectives_in, cost_of
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


PROGRAM = """
%sliced (param_0: bf16[64,128]) -> bf16[2,128] {
  %param_0 = bf16[64,128]{1,0} parameter(0)
  %view = bf16[64,128]{1,0} bitcast(%param_0)
  ROOT %slice = bf16[2,128]{1,0} slice(%view), slice={[0:2], [0:128]}
}

%summed (param_0.1: bf16[64,128]) -> f32[] {
  %param_0.1 = bf16[64,128]{1,0} parameter(0)
  ROOT %reduce = f32[] reduce(%param_0.1), dimensions={0,1}
}

%body (carry: f32[4]) -> f32[4] {
  %carry = f32[4]{0} parameter(0)
  ROOT %twice = f32[4]{0} add(%carry, %carry)
}

%one (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %negative = f32[4]{0} negate(%a)
}

%other (b: f32[4]) -> f32[4] {
  ROOT %b = f32[4]{0} parameter(0)
}

ENTRY %main (x: bf16[64,128], y: f32[4], n: s32[]) -> f32[] {
  %x = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  %y = f32[4]{0} parameter(1)
  %n = s32[]{:T(128)S(6)} parameter(2)
  INSTRUCTIONS
}
"""
WHOLE, FOUR = 2 * 64 * 128, 4 * 4


@pytest.mark.parametrize(
    ("instructions", "moved", "kernels", "messages"),
    [
        ("%r = bf16[64,128]{1,0} add(%x, %x)", 2 * WHOLE, 1, 0),
        ("%r = (bf16[64,128]{1,0}, pred[8]{0}) fusion(%x), calls=%summed", 2 * WHOLE + 8, 1, 0),
        ("%r = bf16[2,128]{1,0} slice(%x), slice={[0:2], [0:128]}", 2 * 2 * 2 * 128, 1, 0),
        ("%r = bf16[2,128]{1,0} fusion(%x), kind=kLoop, calls=%sliced", 2 * 2 * 2 * 128, 1, 0),
        ("%r = f32[] fusion(%x), kind=kInput, calls=%summed", WHOLE + 4, 1, 0),
        (
            # Fetched into the fast memory, and read there.
            "%s = (bf16[64,128]{1,0:S(1)}, bf16[64,128]{1,0}, u32[]) copy-start(%x)\n"
            "  %d = bf16[64,128]{1,0:T(8,128)(2,1)S(1)} copy-done(%s)\n"
            "  %r = bf16[64,128]{1,0} add(%d, %d)",
            *(2 * WHOLE, 1, 0),
        ),
        (
            "%s = f32[4]{0} all-reduce-start(%y), to_apply=%body\n"
            "  %r = f32[4]{0} all-reduce-done(%s)",
            *(2 * FOUR, 1, 1),
        ),
        (
            '%r = f32[4]{0} while(%y), condition=%c, body=%body, backend_config={"known_trip_count"'
            ':{"n":"3"}}',
            *(3 * 2 * FOUR, 3, 0),
        ),
        ("%r = f32[4]{0} call(%y), to_apply=%body", 2 * FOUR, 1, 0),
        (
            "%r = f32[4]{0} conditional(%n, %y, %y), branch_computations={%other, %one}",
            *(2 * FOUR, 1, 0),
        ),
        (
            "%r = f32[4]{0} conditional(%n, %y, %y), true_computation=%one, "
            "false_computation=%other",
            *(2 * FOUR, 1, 0),
        ),
        ("%r = s32[]{:T(128)S(6)} add(%n, %n)", 0, 0, 0),
    ],
)
def test_what_a_program_costs(instructions: str, moved: int, kernels: int, messages: int) -> None:
    text = PROGRAM.replace("INSTRUCTIONS", instructions)
    assert cost_of(text, numbers_are_free=True) == Cost(moved, kernels)
    assert collectives_in(text) == messages


def test_a_gpu_launches_a_kernel_for_a_number() -> None:
    text = PROGRAM.replace("INSTRUCTIONS", "%r = s32[] add(%n, %n)")
    assert cost_of(text, numbers_are_free=False).kernels == 1


@pytest.mark.skipif(
    any(map(importlib.util.find_spec, ("libtpu", "jax_cuda12_plugin"))), reason="it has a compiler"
)
def test_without_a_compiler_the_benchmark_says_what_to_install(tmp_path: Path) -> None:
    record = tmp_path / "accelerators.json"
    done = run("-m", "benchmarks", "accelerators", record, folder=ROOT, **CACHE)
    assert done.returncode == 1
    assert 'pip install "jax[tpu]==' in done.stderr
    assert "pip install --no-deps jax-cuda12-plugin==" in done.stderr
    assert not record.exists()
