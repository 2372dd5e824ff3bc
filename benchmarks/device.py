"""Check the device that JAX finds, such as a GPU, in four minutes.

It times compiled steps of optimizers and of a small transformer, stock and patched, counts their
bytes, compares their numbers with those on the CPU, trains the transformer in bfloat16 and float32,
and runs ``doctor`` and the examples there. Each side has a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("device_worker.py")
SIDES = {
    "stock": {"OPTAX_DTYPEFIX": "off"},
    "patched": {},
    "to nearest": {"OPTAX_DTYPEFIX_DISABLE": "stochastic_rounding"},
}
"""The processes, and their variables."""

SHARES = {"stock": 0.25, "patched": 0.45, "to nearest": 0.1}
"""How much of the time each process may take. The rest is for ``doctor`` and the examples."""

NAMES = (
    "adamw",
    "clip, inject(adamw)",
    "MultiSteps(adamw)",
    "lion",
    "schedule_free_sgd",
    "adafactor",
    "master_weights(adamw)",
)


def check(
    params: int | None, trained: int | None, limit: float, names: Sequence[str], *, programs: bool
) -> dict[str, Any]:
    """Measure for as long as the limit admits.

    Args:
      params: their number in a step of an optimizer; by default 2**26, on a CPU 2**20.
      trained: steps in which the transformer is trained; by default 3000, on a CPU 200.
      limit: in seconds.
      names: of :data:`NAMES`.
      programs: whether to run ``doctor`` and the examples, too.
    """
    start = time.monotonic()
    cpu = jax.default_backend() == "cpu"
    params = params or 2 ** (20 if cpu else 26)
    trained = (200 if cpu else 3000) if trained is None else trained
    found = {side: run_worker(side, params, trained, SHARES[side] * limit, names) for side in SIDES}
    programs_found = run_programs(limit - (time.monotonic() - start)) if programs else {}
    return {
        "params": params,
        "steps": dict(compare(found)),
        "bits": {
            f"{name}, {side}": result
            for side in ("patched", "to nearest")
            for name, result in found[side]["bits"].items()
        },
        "trained_steps": trained,
        "training": found["patched"]["training"],
        **programs_found,
        "errors": {side: of["error"] for side, of in found.items() if of["error"]},
        "seconds": round(time.monotonic() - start),
    }


def environment(**variables: str) -> dict[str, str]:
    """Return this environment, without a preallocated GPU memory, for processes at one time."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPTAX_DTYPEFIX")}
    return {**inherited, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **variables}


def run_worker(
    side: str, params: int, trained: int, seconds: float, names: Sequence[str]
) -> dict[str, Any]:
    """Return the results of one process by part and name, and its last error, if it failed."""
    command = [sys.executable, WORKER, params, trained, seconds, *names]
    process = subprocess.Popen(
        [*map(str, command)],
        env=environment(**SIDES[side]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = end(process, seconds + 60)
    found: dict[str, Any] = {"steps": {}, "bits": {}, "training": {}, "error": ""}
    for line in output.splitlines():
        result = json.loads(line)
        found[result.pop("part")][result.pop("step")] = result
    if process.returncode:
        found["error"] = last_line(errors)
    return found


def end(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """Wait for a process, and end it when the time is over."""
    try:
        return process.communicate(timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return output[: output.rfind("\n") + 1], "no time was left"


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next(filter(None, map(str.strip, reversed(text.splitlines()))), "no output")


def compare(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each step by name, with its result on each side, and whether its program is stock's."""
    names = dict.fromkeys(name for side in SIDES for name in found[side]["steps"])
    for name in names:
        sides = {side: found[side]["steps"].get(name, {}) for side in SIDES}
        programs = [sides[side].pop("program", side) for side in SIDES]
        kept = {side: result for side, result in sides.items() if result}
        yield name, {**kept, "same": programs[0] == programs[1]}


def run_programs(seconds: float) -> dict[str, Any]:
    """Run ``doctor`` and the examples at the same time, on the device that JAX finds."""
    examples = sorted((ROOT / "examples").glob("[!_]*.py"))
    commands = {path.name: [str(path)] for path in examples}
    commands["doctor"] = ["-m", "optax_dtypefix", "doctor", "--json"]
    start = time.monotonic()
    processes = {
        name: subprocess.Popen(
            [sys.executable, *command],
            # ``doctor`` uses the CPU, unless this variable is set.
            env=environment(JAX_PLATFORMS=os.environ.get("JAX_PLATFORMS", "")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, command in commands.items()
    }
    ended = {
        name: end(process, seconds - (time.monotonic() - start))
        for name, process in processes.items()
    }
    failed = {name for name, process in processes.items() if process.returncode}
    output, errors = ended.pop("doctor")
    return {
        "doctor": faults(json.loads(output))
        if processes["doctor"].returncode in {0, 1}
        else {"error": last_line(errors)},
        "examples": {
            name: last_line(errors if name in failed else output)
            for name, (output, errors) in ended.items()
        },
    }


def faults(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """Return the conclusion, and the faults that are not as on the CPU."""
    wrong = ("still fails", "not shown")
    return {
        "conclusion": diagnosis["conclusion"].partition("\n")[0],
        **{
            verdict: [
                f"{row['patch']}.{row['fault']}"
                for row in diagnosis["faults"]
                if row["verdict"] == verdict
            ]
            for verdict in wrong
        },
    }


def table(record: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table, stock → patched, and all other results."""
    versions = f"jax {record['jax']}, optax {record['optax']}"
    yield f"{record['device']}, {versions}, {record['params']:,} params"
    yield "| step | ms | ratio | temporaries, bytes a param | peak |"
    yield "|---|---|---|---|---|"
    for name, sides in record["steps"].items():
        for side in ("patched", "to nearest"):
            if side in sides:
                title = name if side == "patched" else f"{name}, rounded to nearest"
                yield f"| {' | '.join((title, *cells(sides, side)))} |"
    for part in ("bits", "training", "doctor", "examples", "errors"):
        for name, found in record.get(part, {}).items():
            yield f"{part}: {name}: {found}"
    yield f"{record['seconds']} seconds"


def cells(sides: dict[str, Any], side: str) -> Iterator[str]:
    """Yield the columns of one step: of stock, if it runs there, and of this side."""
    stock, ours = sides.get("stock", {}), sides[side]
    yield " → ".join(
        f"{of['ms'][1]:g}" if "ms" in of else of.get("raises", "-") for of in (stock, ours)
    )
    yield "same program" if side == "patched" and sides["same"] else ratio(stock, ours)
    for key in ("temporaries", "peak"):
        yield " → ".join(f"{of[key]:g}" if key in of else "-" for of in (stock, ours))


def ratio(stock: dict[str, Any], ours: dict[str, Any]) -> str:
    """Format a time over that of stock."""
    return f"{ours['ms'][1] / stock['ms'][1]:.2f}" if "ms" in stock and "ms" in ours else "-"
