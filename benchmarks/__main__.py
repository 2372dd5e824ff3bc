"""Measure steps, imports, calls, memory and large trees on the installed optax, as JSON.

Run as ``python benchmarks FILE [--upgraded PYTHON] [--only NAME...] [--sizes N...] [--regimes
NAME...]``. PYTHON belongs to an environment with the newest optax, to compare with upgrading.
Nothing else should run on the machine; noisy figures are marked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import calls
import imports
import jax
import memory
import optax
import scale
from cases import CASES
from steps import REGIMES, STEPS, measure

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.recorded import this_code


def main() -> None:
    """Measure the requested cases, and write after each of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--upgraded")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--sizes", nargs="*", type=int, default=list(STEPS), choices=STEPS)
    parser.add_argument("--regimes", nargs="*", default=list(REGIMES), choices=REGIMES)
    asked = parser.parse_args()
    record: dict[str, Any] = {
        "optax": optax.__version__,
        "jax": jax.__version__,
        "recorded_on": this_code(),
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "steps": [],
    }
    for name in asked.only:
        for regime in filter(asked.regimes.__contains__, CASES[name].regimes):
            for found in measure(name, regime, asked.sizes, asked.upgraded):
                record["steps"].append(found)
            print(name, regime, file=sys.stderr, flush=True)
            write(record, asked.file)
    record["imports"] = imports.measure()
    record["calls"] = calls.measure()
    record["memory"] = memory.measure()
    record["scale"] = scale.measure()
    write(record, asked.file)


def write(record: dict[str, Any], file: Path) -> None:
    """Write the record as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


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
