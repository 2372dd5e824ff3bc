"""Record the long runs: stock and patched optax, and the float64 reference.

Run ``python -m evidence.long_runs.record FILE.json`` in ``tests/``. It takes half an hour.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optax

from evidence.long_runs.cases import CASES, HALVES
from evidence.long_runs.reference_run import WINDOW, losses_in
from support.processes import STOCK, finish, start, stdout_of, stock_and_patched
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


OPT_INS = {"OPTAX_DTYPEFIX_ENABLE": "float32_moments,float32_averages"}

PROCESSES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "stock": (("half",), STOCK),
    "patched": (
        ("half", "master_weights", "stochastic_rounding", "by_turns", "float32", "perturbed"),
        {},
    ),
    "rounded": (("half",), {"OPTAX_DTYPEFIX_ENABLE": "stochastic_rounding"}),
    "opt-ins": (("half",), OPT_INS),
    "float64": (("float64",), {"JAX_ENABLE_X64": "1"}),
}
"""For each process: the ways that it trains, and its environment."""


def in_each_way() -> list[dict[str, Any]]:
    """Return final losses and bytes a param of each case, in each way: kept, and at the peak."""
    module = "evidence.long_runs.ways"
    started = [start("-m", module, "--ways", *ways, **env) for ways, env in PROCESSES.values()]
    cases: dict[tuple[str, str], dict[str, Any]] = {}
    for process, done in zip(PROCESSES, finish(started)):
        for found in json.loads(stdout_of(done).splitlines()[-1]):
            way = process if found["way"] == "half" else found["way"]
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


def main(path: str) -> None:
    code = this_code()
    stock, patched = stock_and_patched("evidence.long_runs.runs", XLA_FLAGS="")
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
    head = json.dumps(facts)[:-1]
    runs_, ways = (",\n".join(map(json.dumps, rows)) for rows in (runs, in_each_way()))
    text = f'{head}, "runs": [\n{runs_}\n], "ways": [\n{ways}\n]}}\n'
    Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
