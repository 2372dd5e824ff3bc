"""The process that ``audit`` starts for each way of patching: one cell after another."""

from __future__ import annotations

import json
import warnings
from typing import Any

from ..._api import status
from ..reproducers import import_optax
from .cases import (
    found as transformations,
    subjects,
)
from .measure import measure
from .regimes import REGIMES


def write_cells(path: str, *only: str) -> None:
    """Measures all subjects, or those named, and writes a JSON line a subject.

    Args:
      path: file to write. The first line has the record of the patches and the number of subjects.
      *only: names of transformations; all if none is given.
    """
    warnings.simplefilter("ignore")  # Of deprecated functions, for example.
    import_optax()
    found = list(subjects(only))
    with open(path, "w", encoding="utf-8") as file:

        def write(**fields: Any) -> None:
            print(json.dumps(fields), file=file, flush=True)

        write(
            report=status().as_dict(),
            subjects=len(found),
            known=sorted(transformations()),
            regimes=[regime.name for regime in REGIMES],
            same_dtypes=[regime.name for regime in REGIMES if regime.same_dtypes],
        )
        for subject in found:
            cells = {regime.name: measure(subject, regime) for regime in REGIMES}
            write(
                name=subject.name,
                rate=subject.rate,
                inside=subject.inside,
                broken={name: [*map(str, cell.broken)] for name, cell in cells.items()},
                updates={name: cell.updates for name, cell in cells.items()},
            )
