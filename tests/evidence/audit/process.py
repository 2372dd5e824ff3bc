"""The worker process of ``audit``, one for each mode: measure one cell after another."""

from __future__ import annotations

import json
import warnings
from typing import Any

import jax
from packaging.version import Version

from evidence.audit.cases import cases, public_transformations
from evidence.audit.measure import measure
from evidence.audit.regimes import REGIMES
from optax_dtypefix import status
from optax_dtypefix._diagnosis.import_optax import import_optax
from support.processes import CACHE_FOLDER


def keep_compiled() -> None:
    """Share what is compiled with the other processes; the environment of a worker has no JAX_."""
    if Version(jax.__version__) >= Version("0.4.31"):  # Older versions cannot do that on the CPU.
        jax.config.update("jax_compilation_cache_dir", CACHE_FOLDER)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def write_cells(path: str, *only: str) -> None:
    """Measure all cases, or those of the named transformations; write one JSON line a case.

    Args:
      path: file to write. The first line has the report of the patches and the number of cases.
      *only: names of transformations; all if none is given.
    """
    warnings.simplefilter("ignore")  # Deprecated functions warn, for example.
    import_optax()
    keep_compiled()
    known = sorted(public_transformations())
    found = list(cases(only)) if set(only) <= set(known) else []
    with open(path, "w", encoding="utf-8") as file:

        def write(**fields: Any) -> None:
            print(json.dumps(fields), file=file, flush=True)

        write(
            report=status().as_dict(),
            known=known,
            regimes=[regime.name for regime in REGIMES],
            same_dtypes=[regime.name for regime in REGIMES if regime.same_dtypes],
        )
        for case in found:
            cells = {regime.name: measure(case, regime) for regime in REGIMES}
            write(
                name=case.name,
                rate=case.rate,
                inside=case.inside,
                broken={name: [*map(str, cell.broken)] for name, cell in cells.items()},
                updates={name: cell.updates for name, cell in cells.items()},
            )
