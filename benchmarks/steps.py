"""Time train steps: stock beside patched, and beside the usual workarounds.

Each way has a process of its own. All processes are alive at the same time and take turns, so that
other load on the machine hits all of them. A ratio whose quartiles are more than 10 % apart is
noisy. A program that equals stock's is not timed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cases import CASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REGIMES = {"float32": {}, "bfloat16": {}, "float16": {}, "float32 x64": {"JAX_ENABLE_X64": "1"}}
STEPS = {10_000: 50, 1_000_000: 20, 50_000_000: 1}
REPEATS = {10_000: 25, 1_000_000: 15, 50_000_000: 5}
ALL_WAYS_AT = 1_000_000  # Workarounds are measured at this size only.
STOCK, PATCHED, CAST_BACK, UPGRADED = "stock", "patched", "cast back", "upgraded"


class Worker:
    """A process for one case."""

    def __init__(self, way: str, name: str, regime: str, python: str) -> None:
        case = CASES[name]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPTAX_DTYPEFIX")}
        shim = {"OPTAX_DTYPEFIX": "on" if way == PATCHED else "off"}
        enabled = {"OPTAX_DTYPEFIX_ENABLE": case.patch} if case.opt_in else {}
        options = ["--cast-back"] if way == CAST_BACK else []
        worker = str(Path(__file__).with_name("worker.py"))
        self._process = subprocess.Popen(
            [python, worker, name, regime.partition(" ")[0], *options],
            env={**inherited, **shim, **enabled, **REGIMES[regime]},
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


def measure(
    name: str, regime: str, sizes: Sequence[int], upgraded: str | None
) -> Iterator[dict[str, Any]]:
    """Measure one case in one regime, size by size: what is compiled, and seconds a step."""
    pythons = {STOCK: sys.executable, PATCHED: sys.executable, CAST_BACK: sys.executable}
    if upgraded:
        pythons[UPGRADED] = upgraded
    workers = {way: Worker(way, name, regime, python) for way, python in pythons.items()}
    try:
        for size in sizes:
            asked = workers if size == ALL_WAYS_AT else {w: workers[w] for w in (STOCK, PATCHED)}
            for worker in asked.values():
                worker.ask("size", size)
            about = {way: worker.answer() for way, worker in asked.items()}
            yield {
                "case": name,
                "patch": CASES[name].patch,
                "regime": regime,
                "size": size,
                "ways": about,
                **times(size, {way: workers[way] for way in timed(about)}),
            }
    finally:
        for worker in workers.values():
            worker.close()


def timed(about: dict[str, Any]) -> list[str]:
    """List stock and the ways that run and whose programs are not stock's."""
    programs = {way: what["program"] for way, what in about.items() if "raises" not in what}
    others = [way for way, program in programs.items() if program != programs.get(STOCK)]
    return [STOCK, *others] if others and STOCK in programs else others


def times(size: int, workers: dict[str, Worker]) -> dict[str, Any]:
    """Return seconds a step, and ratios to stock, turn by turn."""
    found: dict[str, list[float]] = {way: [] for way in workers}
    for _ in range(REPEATS[size]):
        for way, worker in workers.items():
            worker.ask("steps", STEPS[size])
            found[way].append(worker.answer())
    return {
        "step_s": {way: quartiles(seconds) for way, seconds in found.items()},
        "ratio": {
            way: quartiles(np.asarray(seconds) / np.asarray(found[STOCK]))
            for way, seconds in found.items()
            if STOCK in found and way != STOCK
        },
    }


def quartiles(values: Any) -> dict[str, Any]:
    """Return the median, the quartiles, and whether the quartiles are far apart."""
    low, median, high = (float(f"{q:.4g}") for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "quartiles": [low, high], "noisy": high - low > 0.1 * median}
