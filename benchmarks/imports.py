"""Times the import with and without the shim, and applying and reverting late; prints JSON.

Run as ``python benchmarks/imports.py``. Processes with and without the shim take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np

REPEATS = 15

IMPORT = """
import sys, time
before = set(sys.modules)
start = time.perf_counter()
{shim}
modules = len(set(sys.modules) - before)
import optax
print([time.perf_counter() - start, modules])
"""

LATE = """
import sys, time, types
import optax
try:
    import optax.contrib
except ImportError:
    pass
for index in range({modules} - len(sys.modules)):
    module = types.ModuleType(f"module_{{index}}")
    vars(module).update((f"name_{{n}}", object()) for n in range(50))
    sys.modules[module.__name__] = module
times = []
start = time.perf_counter()
import optax_dtypefix
times.append(time.perf_counter() - start)
for verb in (optax_dtypefix.revert, optax_dtypefix.apply, optax_dtypefix.revert):
    start = time.perf_counter()
    verb()
    times.append(time.perf_counter() - start)
print(times)
"""


def run(script: str, **values: Any) -> list[float]:
    """What a script prints, in a new process."""
    command = [sys.executable, "-c", script.format(**values)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measures and prints."""
    turns = [
        [run(IMPORT, shim=shim) for shim in ("", "import optax_dtypefix")] for _ in range(REPEATS)
    ]
    ratios = [patched[0] / stock[0] for stock, patched in turns]
    low, median, high = (float(q) for q in np.quantile(ratios, (0.25, 0.5, 0.75)))
    late = {}
    for modules in (1000, 2000, 4000):
        runs = np.median([run(LATE, modules=modules) for _ in range(5)], 0)
        late[modules] = dict(zip(("first apply", "revert", "apply", "revert again"), runs.tolist()))
    print(
        json.dumps(
            {
                "import, with the shim / without": {"median": median, "quartiles": [low, high]},
                "import optax, s": float(np.median([stock[0] for stock, _ in turns])),
                "modules that the shim imports before optax": turns[0][1][1],
                "late, s, by number of loaded modules": late,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
