"""Measure the installed optax, and write what docs/benchmarks.md shows.

- ``python -m benchmarks release FILE [--raw FILE] [--only NAME...] [--sizes N...] [--settings
  NAME...]`` measures steps, imports, calls and large trees. Nothing else should run on the machine.
- ``python -m benchmarks memory FILE`` counts the bytes of compiled steps. Nothing is timed.
- ``python -m benchmarks accelerators FILE`` counts what compiled steps cost on a TPU v5e and an
  H100 that are not there, if their compilers are installed. Nothing is run.
- ``python -m benchmarks device [FILE] [--params N] [--trained N] [--limit SECONDS] [--only
  NAME...]`` checks the device that JAX finds, such as a GPU, in four minutes.
"""

from __future__ import annotations

import optax_dtypefix  # noqa: F401  # isort: skip  # Before optimizers are built.

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "tests"))

import accelerators
import calls
import device
import imports
import jax
import memory
import optax
import scale
from cases import CASES, COMMON
from steps import SETTINGS, STEPS, measure
from summary import summarize

from support.recorded import this_code, write


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("release", help="steps, imports, calls and large trees")
    command.add_argument("file", type=Path)
    command.add_argument("--raw", type=Path, help="for all that is measured")
    command.add_argument("--only", nargs="*", default=list(CASES), choices=CASES)
    command.add_argument("--sizes", nargs="*", type=int, default=list(STEPS), choices=STEPS)
    command.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=SETTINGS)
    command.set_defaults(measure=measure_release)
    command = commands.add_parser("memory", help="bytes of compiled steps")
    command.add_argument("file", type=Path)
    command.set_defaults(measure=measure_memory)
    command = commands.add_parser("accelerators", help="compiled steps of a TPU v5e and an H100")
    command.add_argument("file", type=Path)
    command.set_defaults(measure=measure_accelerators)
    command = commands.add_parser("device", help="a check of the device that JAX finds")
    command.add_argument("file", type=Path, nargs="?")
    command.add_argument("--params", type=int, help="2**26 by default, on a CPU 2**20")
    command.add_argument("--trained", type=int, help="steps, 3000 by default, on a CPU 200")
    command.add_argument("--limit", type=float, default=240, help="seconds")
    command.add_argument("--only", nargs="*", help="optimizers; without doctor and the examples")
    command.set_defaults(measure=check_device)
    asked = parser.parse_args()
    asked.measure(asked)


def code_facts() -> dict[str, Any]:
    """Return versions, and the digest of the code."""
    versions = {"optax": optax.__version__, "jax": jax.__version__}
    return {**versions, "recorded_on": this_code()}


def facts() -> dict[str, Any]:
    """Return versions and the machine."""
    return {
        **code_facts(),
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "machine": f"{processor()}, {os.cpu_count()} cores",
    }


def measure_release(asked: argparse.Namespace) -> None:
    """Measure the requested cases; write raw results after each of them, and the record."""
    measured: dict[str, Any] = {**facts(), "steps": []}

    def write_raw() -> None:
        if asked.raw:
            asked.raw.parent.mkdir(parents=True, exist_ok=True)
            asked.raw.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")

    for name in asked.only:
        for setting in filter(asked.settings.__contains__, CASES[name].settings):
            measured["steps"] += measure(name, setting, asked.sizes)
            print(name, setting, file=sys.stderr, flush=True)
            write_raw()
    measured["imports"] = imports.measure()
    measured["calls"] = calls.measure()
    measured["scale"] = scale.measure()
    write_raw()
    write(summarize(measured, COMMON), asked.file)


def measure_memory(asked: argparse.Namespace) -> None:
    """Count, and write the record."""
    write({**code_facts(), **memory.summarize(memory.measure())}, asked.file)


def measure_accelerators(asked: argparse.Namespace) -> None:
    """Compile, and write the record."""
    write({**code_facts(), **accelerators.measure()}, asked.file)


def check_device(asked: argparse.Namespace) -> None:
    """Check the device, print a table, and write the record."""
    names, programs = asked.only or device.NAMES, not asked.only
    found = device.check(asked.params, asked.trained, asked.limit, names, programs=programs)
    record = {**facts(), **found}
    print("\n".join(device.table(record)))
    if asked.file:
        write(record, asked.file)


def processor() -> str:
    """Return the name of the processor, where the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
