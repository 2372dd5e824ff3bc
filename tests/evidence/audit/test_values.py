"""No update is further from that in float64 than on stock. ``nox -s fuzz`` draws more cells."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from evidence.ways import in_three_ways
from support.processes import CACHE, QUICKLY

if TYPE_CHECKING:
    from pathlib import Path

COUNT, SEED = os.environ.get("OPTAX_VALUES", "120 0").split()
"""How many cells are drawn, and the seed: ``OPTAX_VALUES="1000 7"`` draws others."""

HALF, WIDE = 4 * 2.0**-8, 1e-4
"""By how much an update may be further off. For b2=0.999, 1 - b2**t in float32 is off by 3e-5."""
RIGHT = 0.1
"""Of small gradients, where stock is not right, nobody is."""
TINY = 2.0**-25
"""By how much a float16 update is off where it is rounded below the normal numbers."""
HALVES = ("bf16", "f16", "bfloat16", "mixed", "wider", "narrower")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("values")
    return in_three_ways(folder, "evidence.audit.values", COUNT, SEED, **CACHE, **QUICKLY)


def error(updates: Any, exact: Any, rounded: float) -> float:
    """Return the relative error of a leaf; infinite where an update is NaN.

    Args:
      updates: of stock or of patched optax; None if it raises.
      exact: the reference.
      rounded: by how much each update may be off.
    """
    if updates is None or updates.shape != exact.shape:
        return np.inf
    with np.errstate(all="ignore"):
        off = np.maximum(np.abs(updates - exact) - rounded, 0)
        off = float(np.where(np.isnan(updates), np.nan, off).sum() / np.abs(exact).sum())
    return off if np.isfinite(off) else np.inf


def test_no_update_is_further_off_than_on_stock(measured: Any) -> None:
    reference, stock, patched = measured
    compared, worse = 0, []
    for cell, exact in reference.items():
        if not (np.isfinite(exact).all() and exact.any()):
            continue
        rounded = TINY if ", f16," in cell else 0.0
        was, got = (error(of.get(cell), exact, rounded) for of in (stock, patched))
        compared += np.isfinite(was)
        if was > RIGHT and np.isfinite(got) and "size 0" not in cell:
            continue
        half = any(word in cell for word in HALVES)
        if got > 1.25 * was + (HALF if half else WIDE):
            worse.append(f"{cell}: {was:.2g} on stock, {got:.2g} patched")
    assert compared > 0.5 * len(reference)
    assert worse == []
