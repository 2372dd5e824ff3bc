"""Time train steps: stock beside patched.

Each has a process of its own. Both are alive at the same time and take turns, so that other load on
the machine hits both. A program that equals stock's is not timed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cases import CASES, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SETTINGS = {"float32": {}, "bfloat16": {}, "float16": {}, "float32 x64": {"JAX_ENABLE_X64": "1"}}
STEPS = {10_000: 50, 1_000_000: 20, 50_000_000: 1}
REPEATS = {10_000: 11, 1_000_000: 9, 50_000_000: 5}
SHIM = {"stock": "off", "patched": "on"}


class Worker:
    """A process for one case."""

    def __init__(self, way: str, name: str, setting: str) -> None:
        case = CASES[name]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPTAX_DTYPEFIX")}
        shim = {"OPTAX_DTYPEFIX": SHIM[way]}
        enabled = {"OPTAX_DTYPEFIX_ENABLE": case.patch} if case.opt_in else {}
        worker = str(Path(__file__).with_name("worker.py"))
        self._process = subprocess.Popen(
            [sys.executable, worker, name, setting.partition(" ")[0]],
            env={**inherited, **shim, **enabled, **SETTINGS[setting]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, kind: str, number: int) -> None:
        """Send a request; call ``answer`` next."""
        assert self._process.stdin is not None
        print(kind, number, file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """Return the result of the last request."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or '{"raises": "the process died"}')

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def measure(name: str, setting: str, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Measure one case in one setting, size by size: what is compiled, and seconds a step."""
    workers = {way: Worker(way, name, setting) for way in SHIM}
    try:
        about: dict[str, Any] = {}
        for size in sizes:
            if not (about and is_same(about)):  # Else it is the same for any size.
                for worker in workers.values():
                    worker.ask("size", size)
                about = {way: worker.answer() for way, worker in workers.items()}
            yield {
                "step": name_of(name, setting),
                "patch": CASES[name].patch,
                "size": size,
                "ways": about,
                **times(size, {way: workers[way] for way in timed(about)}),
            }
    finally:
        for worker in workers.values():
            worker.close()


def is_same(about: dict[str, Any]) -> bool:
    """Return whether both ways run, and have the same program."""
    programs = {what.get("program") for what in about.values()}
    return len(programs) == 1 and None not in programs


def timed(about: dict[str, Any]) -> list[str]:
    """List the ways that run, unless their programs are the same."""
    return [] if is_same(about) else [way for way in about if "raises" not in about[way]]


def times(size: int, workers: dict[str, Worker]) -> dict[str, Any]:
    """Return seconds a step, and their ratio to those of stock, turn by turn."""
    found: dict[str, list[float]] = {way: [] for way in workers}
    for _ in range(REPEATS[size]):
        for way, worker in workers.items():
            worker.ask("steps", STEPS[size])
            found[way].append(worker.answer())
    ratios = np.divide(*map(found.get, ("patched", "stock"))) if len(found) == 2 else None
    return {
        "step_s": {way: quartiles(seconds) for way, seconds in found.items()},
        "ratio": None if ratios is None else quartiles(ratios),
    }


def quartiles(values: Any) -> list[float]:
    """Return the lower quartile, the median and the upper quartile, to four digits."""
    return [float(f"{q:.4g}") for q in np.quantile(values, (0.25, 0.5, 0.75))]
