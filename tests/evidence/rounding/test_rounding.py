"""Moments in half precision are as right as on stock optax, wherever it is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from evidence.rounding.measure import EXPONENTS, KINDS, WINDOWS, errors
from evidence.ways import in_three_ways

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = 0.1

# Where stock is right in a window by chance, or after infinite updates.
KNOWN = {
    # Its second moment starts at 17 units: one unit is an error of 3 %.
    ("yogi", "normal", -10),
    ("yogi", "sparse", -10),
    # Its moments have no counter, and grow by whole units.
    ("adadelta", "normal", -13),
    # A maximum keeps the highest of the first corrected moments, which are few units.
    ("amsgrad", "sparse", -7),
    # Its updates are clipped, so a moment of zero does no harm. One of a whole unit does.
    *(("adopt", "sparse", exponent) for exponent in range(-13, -7)),
}


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def measured(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the updates of a float64 reference, of stock and of patched optax."""
    folder: Path = tmp_path_factory.mktemp("rounding")
    return in_three_ways(folder, "evidence.rounding.measure", request.param, exact=("float64",))


def not_finite(found: Any) -> set[tuple[str, int]]:
    """Name the transformations and rows with an update that is not finite."""
    return {
        (name, row)
        for name, updates in found.items()
        for row in np.flatnonzero(~np.isfinite(updates).all(axis=(1, 2, 3)))
    }


def test_no_window_is_worse_than_on_stock_where_stock_is_right(measured: Any) -> None:
    reference, stock, patched = measured
    rows = [(kind, exponent) for kind in KINDS for exponent in EXPONENTS]
    right, worse = 0, []
    for name in stock:
        ours, theirs = (errors(updates[name], reference[name]) for updates in (patched, stock))
        for window in WINDOWS:
            for (kind, exponent), got, was in zip(rows, ours[window], theirs[window]):
                if kind == "constant" or was > RIGHT or (name, kind, exponent) in KNOWN:
                    continue
                right += 1
                if got > 1.25 * was + 0.003:
                    worse.append(f"{name}, {kind} 2^{exponent}, {window}: {was:.4f}, {got:.4f}")
    assert right > 300
    assert worse == []


def test_no_update_is_infinite_or_nan_but_on_stock(measured: Any) -> None:
    _, stock, patched = measured
    assert not_finite(patched) <= not_finite(stock)
