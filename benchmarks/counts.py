"""Print the counts of a few train steps of each benchmark case, as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from worker import Step  # isort: skip  # It has the shim imported first.
from cases import CASES

X64 = bool(os.environ.get("JAX_ENABLE_X64"))


def counts(name: str, dtype: str) -> dict[str, Any]:
    """Return traces, bytes of state and float64 arrays in three steps, or the error."""
    try:
        return Step(CASES[name], 1000, dtype, cast_back=False).about()
    except (TypeError, ValueError) as error:
        return {"raises": str(error)}


def main() -> None:
    """Count in all cases that need no opt-in patch."""
    wanted = [
        (name, regime)
        for name, case in CASES.items()
        for regime in case.regimes
        if not case.opt_in and regime.endswith("x64") == X64
    ]
    print(json.dumps({f"{name} {r}": counts(name, r.partition(" ")[0]) for name, r in wanted}))


if __name__ == "__main__":
    main()
