"""Times train steps, stock and patched side by side; writes JSON and a table.

Run as ``python benchmarks/steps.py FOLDER [--only NAME...] [--sizes N...] [--regimes NAME...]``.
The ways run in processes of their own, at the same time alive and in turn at work, so that whatever
else the machine does falls on all of them. A ratio whose quartiles are more than 10 % apart is
noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
import optax.contrib  # The cases look for what it has.
from cases import CASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAYS = {"stock": {"OPTAX_DTYPEFIX": "off"}, "patched": {}, "cast back": {"OPTAX_DTYPEFIX": "off"}}
REGIMES = {"float32": False, "bfloat16": False, "float32 x64": True}
STEPS = {10_000: 200, 1_000_000: 20, 50_000_000: 2}
REPEATS = 15


class Worker:
    """A process that holds one case; None for its header if it cannot run there."""

    def __init__(self, way: str, name: str, regime: str, size: int) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPTAX_DTYPEFIX")}
        x64 = {"JAX_ENABLE_X64": "1"} if REGIMES[regime] else {}
        dtype = regime.partition(" ")[0]
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("worker.py")),
                way,
                name,
                dtype,
                str(size),
            ],
            env={**inherited, **WAYS[way], **x64},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        header = self._process.stdout.readline()
        self.header: dict[str, Any] | None = json.loads(header) if header else None

    def time(self, steps: int) -> float:
        """Seconds for one step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(steps, file=self._process.stdin, flush=True)
        return float(json.loads(self._process.stdout.readline())) / steps

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def measure(name: str, regime: str, size: int) -> dict[str, Any]:
    """One case: what was compiled in each way, and seconds for a step."""
    workers = {way: Worker(way, name, regime, size) for way in WAYS}
    running = {way: worker for way, worker in workers.items() if worker.header is not None}
    times: dict[str, list[float]] = {way: [] for way in running}
    for _ in range(REPEATS):
        for way, worker in running.items():
            times[way].append(worker.time(STEPS[size]))
    for worker in workers.values():
        worker.close()
    return {
        "case": name,
        "patch": CASES[name].patch,
        "regime": regime,
        "size": size,
        "ways": {way: running[way].header for way in running},
        "step_s": {way: float(np.median(found)) for way, found in times.items()},
        "ratio": {way: ratio(times[way], times["stock"]) for way in times if "stock" in times},
    }


def ratio(times: Sequence[float], stock: Sequence[float]) -> dict[str, Any]:
    """Time over that of stock, turn by turn: median and quartiles."""
    ratios = np.asarray(times) / np.asarray(stock)
    low, median, high = (float(q) for q in np.quantile(ratios, (0.25, 0.5, 0.75)))
    return {"median": median, "quartiles": [low, high], "noisy": high - low > 0.1 * median}


def table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The results as Markdown: patched beside stock, which may not run at all."""
    yield (
        "| case | patch | regime | params | step: patched / stock | cast back / stock | traces |"
        + (" instructions | state bytes | float64 inside |")
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for found in results:
        ways = found["ways"]
        words = [found["case"], f"`{found['patch']}`", found["regime"], f"{found['size']:.0e}"]
        words += [in_words(found["ratio"].get(way)) for way in ("patched", "cast back")]
        for key in ("traces", "instructions", "state_bytes_later", "float64"):
            values = [
                str(ways[way][key]) if way in ways else "raises" for way in ("stock", "patched")
            ]
            words.append(" → ".join(dict.fromkeys(values)))
        yield f"| {' | '.join(words)} |"


def in_words(found: dict[str, Any] | None) -> str:
    """A ratio with its quartiles."""
    if found is None:
        return "-"
    low, high = found["quartiles"]
    return f"{found['median']:.2f} ({low:.2f} to {high:.2f}){', noisy' if found['noisy'] else ''}"


def main() -> None:
    """Measures what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--sizes", nargs="*", type=int, default=list(STEPS), choices=STEPS)
    parser.add_argument("--regimes", nargs="*", default=list(REGIMES), choices=REGIMES)
    asked = parser.parse_args()
    results = []
    for name in asked.only:
        for regime in asked.regimes:
            for size in asked.sizes:
                results.append(measure(name, regime, size))
                print(*list(table(results[-1:]))[2:], file=sys.stderr)
    about = {
        "optax": optax.__version__,
        "jax": jax.__version__,
        "device": str(jax.devices()[0]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    text = json.dumps({**about, "results": results}, indent=1)
    (asked.folder / f"{optax.__version__}.json").write_text(text + "\n", encoding="utf-8")
    heading = ", ".join(f"{key} {value}" for key, value in about.items())
    lines = [f"# Steps: {heading}", "", *table(results), ""]
    (asked.folder / f"{optax.__version__}.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
