"""Draws the losses of all long runs: stock, patched and the float64 reference, side by side.

Run as ``picture.py FILE.svg``.
"""

from __future__ import annotations

import sys
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import optax
from cases import CASES
from processes import stock_and_patched
from reference_run import WINDOW, losses_in

COLUMNS = 5
COLORS = {"stock": "#d1495b", "patched": "#00798c", "float64": "#222222"}
TITLE = (
    "Softmax regression on digits, params in half precision: loss over 3,000 steps\n"
    "red: stock optax {version} (a cross: not a number from there on), "
    "blue: with optax_dtypefix, dashed: float64 in numpy, dotted: that with params rounded"
)


def draw_run(axes: Any, *, stock: Any, patched: Any, exact: Any, rounded: Any) -> None:
    steps = WINDOW * (np.arange(len(exact)) + 1)
    axes.plot(steps, exact, "--", color=COLORS["float64"], linewidth=1.0, zorder=3)
    axes.plot(steps, rounded, ":", color=COLORS["float64"], linewidth=1.0, zorder=3)
    axes.plot(steps, patched, color=COLORS["patched"], linewidth=2.0)
    axes.plot(steps, stock, color=COLORS["stock"], linewidth=1.0)
    finite = np.isfinite(stock)
    if not finite.all():
        last = int(np.argmin(finite))
        axes.plot(
            [steps[last]], [stock[last - 1] if last else exact[0]], "x", color=COLORS["stock"]
        )
    axes.set_yscale("log")
    axes.tick_params(labelsize=6, which="both")


def main(path: str) -> None:
    stock, patched = stock_and_patched()
    runs = [(case, dtype) for case in CASES for dtype in case.dtypes]
    rows = -(-len(runs) // COLUMNS)
    figure, grid = plt.subplots(rows, COLUMNS, figsize=(12, 1.7 * rows), sharex=True)
    for axes in grid.flat[len(runs) :]:
        axes.set_visible(False)
    for (case, dtype), axes in zip(runs, grid.flat):
        key = f"{case.name} {dtype}"
        draw_run(
            axes,
            stock=stock[key]["losses"],
            patched=patched[key]["losses"],
            exact=losses_in(None, case),
            rounded=losses_in(dtype, case),
        )
        axes.set_title(f"{case.name}\n{dtype}", fontsize=7)
    figure.suptitle(TITLE.format(version=optax.__version__), fontsize=9)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = path  # The same picture twice is the same file.
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
