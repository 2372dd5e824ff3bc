"""Record the long runs: stock and patched optax, and the float64 reference.

Run ``python -m evidence.long_runs.record FILE.json`` in ``tests/``. It takes some minutes.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optax

from evidence.long_runs.cases import CASES
from evidence.long_runs.reference_run import WINDOW, losses_in
from support.processes import stock_and_patched

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


def main(path: str) -> None:
    stock, patched = stock_and_patched("evidence.long_runs.runs")
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
    lines = ",\n".join(map(json.dumps, runs))
    head = json.dumps({"optax": optax.__version__, "steps_a_point": WINDOW})[:-1]
    Path(path).write_text(f'{head}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
