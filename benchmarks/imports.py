"""Measure what the shim adds to ``import optax``, and late ``apply()`` and ``revert()``.

Processes with and without the shim take turns, with bytecode, as users have it. CPU seconds count,
and instructions where valgrind is installed: other load on the machine disturbs the former little,
and the latter not at all. No garbage is collected: a collection takes 30 ms once all of jax is
loaded, and chance decides in which import that happens.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
from steps import quartiles

REPEATS = 10
STOCK, WITH_WRAPT, PATCHED = "import optax", "import optax, wrapt", "import optax_dtypefix, optax"

IMPORT = """
import gc, time
gc.disable()
start = time.process_time()
{statement}
print([time.process_time() - start])
"""

ALONE = """
import gc, sys, time
gc.disable()
before, start = set(sys.modules), time.process_time()
import optax_dtypefix
print([time.process_time() - start, len(set(sys.modules) - before)])
"""

LATE = """
import gc, sys, time, types
import optax, optax.contrib
for index in range({modules} - len(sys.modules)):
    module = types.ModuleType(f"module_{{index}}")
    vars(module).update((f"name_{{n}}", object()) for n in range(50))
    sys.modules[module.__name__] = module
gc.disable()
times = []
start = time.process_time()
import optax_dtypefix
times.append(time.process_time() - start)
for verb in (optax_dtypefix.revert, optax_dtypefix.apply):
    start = time.process_time()
    verb()
    times.append(time.process_time() - start)
print(times)
"""


def measure() -> dict[str, Any]:
    """Return CPU seconds, and instructions where they can be counted."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def run(script: str, **values: Any) -> list[float]:
            """Return the output of a script in a new process."""
            command = [sys.executable, "-c", script.format(**values)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            )
            found: list[float] = json.loads(done.stdout)
            return found

        statements = (STOCK, WITH_WRAPT, PATCHED)
        turns = [
            [run(IMPORT, statement=statement)[0] for statement in statements]
            for _ in range(REPEATS + 1)  # The first one writes the bytecode.
        ]
        stock, with_wrapt, patched = np.asarray(turns[1:]).T
        alone = np.asarray([run(ALONE) for _ in range(REPEATS)])
        found: dict[str, Any] = {
            "stock": quartiles(stock),
            "wrapt more": quartiles(with_wrapt - stock),
            "more": quartiles(patched - stock),
            "the statement alone": quartiles(alone[:, 0]),
            "modules before optax": int(alone[0, 1]),
            "instructions": {name: instructions(name, environment) for name in statements},
            "late": {},
        }
        for modules in (1000, 2000, 4000):
            runs = np.asarray([run(LATE, modules=modules) for _ in range(REPEATS // 2)])
            verbs = ("import and apply", "revert", "apply")
            found["late"][str(modules)] = {
                verb: quartiles(runs[:, column]) for column, verb in enumerate(verbs)
            }
        return found


def instructions(statement: str, environment: dict[str, str]) -> int | None:
    """Count the instructions of a process; None without valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    tool = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    script = f"import gc; gc.disable(); {statement}"
    command = [*tool, sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    return int(collected[1]) if collected else None
