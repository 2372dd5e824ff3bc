"""Record the long runs: stock and patched optax, and the float64 reference.

Run ``python -m evidence.long_runs.record FILE.json`` in ``tests/``. It takes 10 to 25 minutes.
"""

from __future__ import annotations

import json
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optax

from evidence.long_runs.cases import CASES, HALVES
from evidence.long_runs.reference_run import WINDOW, losses_in
from support.processes import CACHE, PATCHED, STOCK, run, stdout_of
from support.recorded import this_code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def rounded(number: float) -> float | None:
    """To four digits; JSON has no number for NaN."""
    return float(f"{number:.4g}") if math.isfinite(number) else None


def curve(losses: Sequence[float]) -> list[float | None]:
    return [rounded(loss) for loss in losses]


def run_of(found: Mapping[str, Any]) -> dict[str, Any]:
    errors = {name: rounded(error) for name, error in found["errors"].items()}
    return {"losses": curve(found["losses"]), "errors": errors}


TO_NEAREST = {"OPTAX_DTYPEFIX_DISABLE": "stochastic_rounding"}
OPT_INS = {"OPTAX_DTYPEFIX_ENABLE": "float32_moments", **TO_NEAREST}

PROCESSES: dict[str, tuple[str, dict[str, str]]] = {
    "stock": ("half", STOCK),
    "patched": ("half", TO_NEAREST),
    "rounded": ("half", {}),
    "opt-ins": ("half", OPT_INS),
    "float64": ("float64", {"JAX_ENABLE_X64": "1"}),
    **{way: (way, {}) for way in ("master_weights", "float32", "perturbed")},
}
"""For each process: the way that it trains, and its environment."""


def printed_by_each(commands: Mapping[Any, tuple[tuple[str, ...], dict[str, str]]]) -> Any:
    """Return the JSON that modules of ``tests/`` print; each core runs one at a time."""

    def printed(command: tuple[tuple[str, ...], dict[str, str]]) -> Any:
        arguments, variables = command
        done = run("-m", *arguments, **CACHE, **variables)
        return json.loads(stdout_of(done).splitlines()[-1])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(commands, pool.map(printed, commands.values())))


def in_each_way(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return final losses and bytes a param of each case, in each way: kept, and at the peak."""
    cases: dict[tuple[str, str], dict[str, Any]] = {}
    for way in PROCESSES:
        for found in results[way]:
            case = cases.setdefault((found["case"], found["dtype"]), {})
            sizes = (found[key] for key in ("bytes", "peak") if key in found)
            case[way] = [rounded(found["loss"]), *map(rounded, sizes)]
    return [
        {
            "case": name,
            "dtype": dtype,
            **ways,
            **cases[name, "float32"],
            **cases[name, "float64"],
        }
        for (name, dtype), ways in cases.items()
        if dtype in HALVES
    ]


CURVES = {"float32": "float32", "stock": "stock", "rounded": "patched"}
"""The processes whose curves the README shows, and their names there."""


def curves_in(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the losses of the transformer, each the mean of some steps."""
    found = {way: [case for case in results[way] if case["curve"]] for way in CURVES}
    return {CURVES[way]: curve(of_way[0]["curve"]) for way, of_way in found.items()}


def main(path: str) -> None:
    code = this_code()
    ways = ("evidence.long_runs.ways", "--ways")
    results = printed_by_each(
        {
            "stock runs": (("evidence.long_runs.runs",), STOCK),
            # The reference rounds params to nearest too: what differs is the optimizer.
            "patched runs": (("evidence.long_runs.runs",), {**PATCHED, **TO_NEAREST}),
            **{name: ((*ways, way), variables) for name, (way, variables) in PROCESSES.items()},
        }
    )
    stock, patched = results["stock runs"], results["patched runs"]
    runs = [
        {
            "case": case.name,
            "patch": case.patch,
            "dtype": dtype,
            "stock": run_of(stock[f"{case.name} {dtype}"]),
            "patched": run_of(patched[f"{case.name} {dtype}"]),
            "reference": curve(losses_in(dtype, case)),
        }
        for case in CASES
        for dtype in case.dtypes
    ]
    facts = {"optax": optax.__version__, "recorded_on": code, "steps_a_point": WINDOW}
    head = json.dumps({**facts, "curves": curves_in(results)})[:-1]
    rows = (",\n".join(map(json.dumps, rows)) for rows in (runs, in_each_way(results)))
    text = '{}, "runs": [\n{}\n], "ways": [\n{}\n]}}\n'.format(head, *rows)
    Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
