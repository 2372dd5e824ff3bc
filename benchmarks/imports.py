"""Measure the import with and without the shim, and late ``apply()`` and ``revert()``.

Processes with and without the shim take turns. Python collects garbage after some number of new
objects, which takes 30 ms once all of jax is loaded. Chance decides whether that happens inside the
import of the shim, so each figure is measured with and without garbage collection.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
from steps import quartiles

REPEATS = 10

IMPORT = """
import gc, sys, time
{collecting}
before = set(sys.modules)
start = time.perf_counter()
{shim}
alone, modules = time.perf_counter() - start, len(set(sys.modules) - before)
import optax
print([time.perf_counter() - start, alone, modules])
"""

LATE = """
import gc, sys, time, types
import optax, optax.contrib
for index in range({modules} - len(sys.modules)):
    module = types.ModuleType(f"module_{{index}}")
    vars(module).update((f"name_{{n}}", object()) for n in range(50))
    sys.modules[module.__name__] = module
{collecting}
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

COLLECTING = {"": "", ", no garbage collected": "gc.disable()"}


def measure() -> dict[str, Any]:
    """Return seconds and ratios."""
    with tempfile.TemporaryDirectory() as cache:
        bytecode = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        bytecode.pop("PYTHONDONTWRITEBYTECODE", None)

        def run(script: str, **values: Any) -> list[float]:
            """Return the output of a script in a new process, with bytecode as users have it."""
            command = [sys.executable, "-c", script.format(**values)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=bytecode)
            found: list[float] = json.loads(done.stdout)
            return found

        found: dict[str, Any] = {}
        for words, collecting in COLLECTING.items():
            stock, patched = ([], [])
            for _ in range(REPEATS + 1):  # The first one writes the bytecode.
                stock.append(run(IMPORT, shim="", collecting=collecting))
                patched.append(run(IMPORT, shim="import optax_dtypefix", collecting=collecting))
            off, on = np.asarray(stock[1:]), np.asarray(patched[1:])
            found["import optax" + words] = {
                "stock_s": quartiles(off[:, 0]),
                "patched_s": quartiles(on[:, 0]),
                "more_s": quartiles(on[:, 0] - off[:, 0]),
                "ratio": quartiles(on[:, 0] / off[:, 0]),
                "the statement alone_s": quartiles(on[:, 1]),
                "modules before optax": int(on[0, 2]),
            }
            for modules in (1000, 2000, 4000):
                runs = np.asarray(
                    [run(LATE, modules=modules, collecting=collecting) for _ in range(REPEATS // 2)]
                )
                verbs = ("import and apply", "revert", "apply", "revert again")
                found[f"{modules} modules loaded{words}"] = {
                    verb: quartiles(runs[:, column]) for column, verb in enumerate(verbs)
                }
        return found
