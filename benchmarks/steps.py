"""Train steps, stock and patched side by side, and beside what a user would do instead.

The ways run in processes of their own, at the same time alive and in turn at work, so that whatever
else the machine does falls on all of them. A ratio whose quartiles are more than 10 % apart is
noisy. A program that is that of stock is not timed.
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
ALL_WAYS_AT = 1_000_000  # Where the ways round the shim are measured as well.
STOCK, PATCHED, CAST_BACK, UPGRADED = "stock", "patched", "cast back", "upgraded"


class Worker:
    """A process that holds one case."""

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
        """Tells it what to do; ``answer`` has to follow."""
        assert self._process.stdin is not None
        print(kind, number, file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """What came of it."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or '{"raises": "the process died"}')

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def measure(
    name: str, regime: str, sizes: Sequence[int], upgraded: str | None
) -> Iterator[dict[str, Any]]:
    """One case in one regime, size by size: what was compiled, and seconds for a step."""
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
    """The ways that run at all, but for those that are what stock is; and stock, to compare."""
    programs = {way: what["program"] for way, what in about.items() if "raises" not in what}
    others = [way for way, program in programs.items() if program != programs.get(STOCK)]
    return [STOCK, *others] if others and STOCK in programs else others


def times(size: int, workers: dict[str, Worker]) -> dict[str, Any]:
    """Seconds for a step, and over those of stock, turn by turn."""
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
    """The median, the quartiles, and whether those are far apart."""
    low, median, high = (float(f"{q:.4g}") for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "quartiles": [low, high], "noisy": high - low > 0.1 * median}
