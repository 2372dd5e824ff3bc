"""Measure in three processes: stock optax in float64, which is the reference, stock and patched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from support.processes import PATCHED, STOCK, finish, start, stdout_of

if TYPE_CHECKING:
    from pathlib import Path

EXACT = {**STOCK, "JAX_ENABLE_X64": "1"}
Arrays = dict[str, Any]


def in_three_ways(
    folder: Path, module: str, *arguments: str, exact: tuple[str, ...] = (), **variables: str
) -> tuple[Arrays, Arrays, Arrays]:
    """Return the arrays that ``python -m MODULE FILE ARGUMENTS`` saves in each way.

    Args:
      folder: where the files are written.
      module: of ``tests/``.
      *arguments: of stock and of patched optax.
      exact: arguments of the reference, if they are others.
      **variables: of all three.
    """
    ways = {
        "reference": (exact or arguments, EXACT),
        "stock": (arguments, STOCK),
        "patched": (arguments, PATCHED),
    }
    running = [
        start("-m", module, folder / f"{way}.npz", *given, **{**variables, **of_way})
        for way, (given, of_way) in ways.items()
    ]
    for done in finish(running):
        stdout_of(done)
    reference, stock, patched = (dict(np.load(folder / f"{way}.npz")) for way in ways)
    return reference, stock, patched
