"""All long runs, stock and patched beside the float64 reference: a page and a picture of losses.

Run as ``page.py FOLDER``; it writes ``long-runs.md`` and ``long-runs.svg``.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import optax

from evidence.long_runs.cases import CASES, Case
from evidence.long_runs.reference_run import WINDOW, losses_in
from support.processes import stock_and_patched

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

COLUMNS = 5
COLORS = {"stock": "#d1495b", "patched": "#00798c", "float64": "#222222"}
TITLE = (
    "Softmax regression on digits, params in half precision: loss over 3,000 steps\n"
    "red: stock optax {version} (a cross: not a number from there on), "
    "blue: with optax_dtypefix, dashed: float64 in numpy, dotted: that with params rounded"
)


WHAT = """\
Softmax regression on scikit-learn's digits, with params in half precision: stock optax {version},
patched, and a reference in float64 numpy.

The third column says how far scalar statistics (with `float32_moments`, moments) are from what they
should be, given the same gradients: the largest relative error at any step, of stock and of patched
optax. The loss is that at the end. The reference rounds params, gradients and updates to the same
dtype, and in bfloat16 also what the optimizer keeps of each param; its arithmetic is float64. In
float16 it keeps moments in float64; those of patched optax are rounded up where float16 has no
finer numbers, which makes steps smaller.
"""


@dataclasses.dataclass(frozen=True)
class Run:
    """One long run; ``exact`` and ``rounded`` are curves of the reference."""

    case: Case
    dtype: str
    stock: Mapping[str, Any]
    patched: Mapping[str, Any]
    exact: Sequence[float]
    rounded: Sequence[float]


def draw_run(axes: Any, run: Run) -> None:
    steps = WINDOW * (np.arange(len(run.exact)) + 1)
    stock = run.stock["losses"]
    axes.plot(steps, run.exact, "--", color=COLORS["float64"], linewidth=1.0, zorder=3)
    axes.plot(steps, run.rounded, ":", color=COLORS["float64"], linewidth=1.0, zorder=3)
    axes.plot(steps, run.patched["losses"], color=COLORS["patched"], linewidth=2.0)
    axes.plot(steps, stock, color=COLORS["stock"], linewidth=1.0)
    finite = np.isfinite(stock)
    if not finite.all():
        last = int(np.argmin(finite))
        level = stock[last - 1] if last else run.exact[0]
        axes.plot([steps[last]], [level], "x", color=COLORS["stock"])
    axes.set_yscale("log")
    axes.set_title(f"{run.case.name}\n{run.dtype}", fontsize=7)
    axes.tick_params(labelsize=6, which="both")


def draw(path: Path, runs: Sequence[Run]) -> None:
    rows = -(-len(runs) // COLUMNS)
    plt.rcParams["svg.hashsalt"] = path.name  # The same picture twice is the same file.
    figure, grid = plt.subplots(rows, COLUMNS, figsize=(12, 1.7 * rows), sharex=True)
    for axes in grid.flat[len(runs) :]:
        axes.set_visible(False)
    for run, axes in zip(runs, grid.flat):
        draw_run(axes, run)
    figure.suptitle(TITLE.format(version=optax.__version__), fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def page(runs: Sequence[Run]) -> Iterator[str]:
    yield "# 3,000 steps in half precision"
    yield ""
    yield from WHAT.format(version=optax.__version__).splitlines()
    yield ""
    yield "| patch | run | statistic: stock, patched | loss: stock | patched | reference |"
    yield "|---|---|---|---|---|---|"
    for run in runs:
        statistics = "<br>".join(
            f"{name}: {in_words(error)}, {in_words(run.patched['errors'][name])}"
            for name, error in run.stock["errors"].items()
        )
        losses = (run.stock["losses"], run.patched["losses"], run.rounded)
        last = (f"{np.mean(loss[-5:]):.2g}" for loss in losses)
        cells = (f"`{run.case.patch}`", f"{run.case.name}, {run.dtype}", statistics or "-", *last)
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "![Loss over 3,000 steps, stock, patched and in float64](long-runs.svg)"


def in_words(error: float) -> str:
    return f"{error:.1e}" if np.isfinite(error) else "not a number"


def main(folder: str) -> None:
    stock, patched = stock_and_patched("evidence.long_runs.runs")
    runs = [
        Run(
            case,
            dtype,
            stock[f"{case.name} {dtype}"],
            patched[f"{case.name} {dtype}"],
            losses_in(None, case),
            losses_in(dtype, case),
        )
        for case in CASES
        for dtype in case.dtypes
    ]
    draw(Path(folder) / "long-runs.svg", runs)
    text = "\n".join(page(runs)) + "\n"
    (Path(folder) / "long-runs.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
