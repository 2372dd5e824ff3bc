"""Write docs/long-runs.md and its two pictures from docs/long-runs.json.

Run ``python docs/write_long_runs.py``. ``evidence.long_runs.record`` writes the JSON file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optax_dtypefix._commands.svg import Svg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Run = Mapping[str, Any]

FOLDER = Path(__file__).parent

GAINS = (
    ("inject_hyperparams(adam)", "bfloat16"),
    ("prodigy", "bfloat16"),
    ("mechanize(sgd)", "bfloat16"),
    ("clip_by_global_norm, norms of hundreds", "float16"),
)
"""The four runs that the README shows."""

WIDTH, MARGIN = 830, 12
TITLE = "Training loss with params in half precision (log scale, lower is better)"

HEAD = """\
# 3,000 steps in half precision

Each run trains a softmax regression on scikit-learn's digits, with params in half precision: with
stock optax {version}, with the patches, and as a reference in float64 NumPy.

![Loss over 3,000 steps: stock, patched and reference](long-runs.svg)

The picture starts with the runs in which stock ends worst. Stock reaches NaN in {nan} of {all}
runs. It ends at least 5 % lower than patched optax in {lower} runs: {names}. There the reference
ends where patched optax does, so stock's rounding error happens to help on this problem.

In the table:

- *Statistics* are scalars that the optimizer keeps, and for `float32_moments` its moments. The two
  figures, of stock and of patched optax, are the largest relative error at any step, given the same
  gradients.
- *Loss* is the mean over the last {steps} steps.
- The *reference* computes in float64. It rounds params, gradients and updates to the dtype of the
  run. In bfloat16 it also rounds the arrays in the optimizer state. In float16 it keeps moments in
  float64; patched optax rounds moments up where float16 has no finer numbers, so its steps are
  smaller.

| patch | run | statistics: stock, patched | loss: stock | patched | reference |
|---|---|---|---|---|---|"""


def main() -> None:
    """Write the page and draw the pictures."""
    record = json.loads((FOLDER / "long-runs.json").read_text("utf-8"))
    (FOLDER / "long-runs.md").write_text("\n".join(page(record)) + "\n", encoding="utf-8")
    by_name = {(run["case"], run["dtype"]): run for run in record["runs"]}
    gains = [by_name[key] for key in GAINS]
    worst_first = sorted(record["runs"], key=lambda run: -how_much_worse(run))
    for name, runs, columns in (("gains", gains, 2), ("long-runs", worst_first, 4)):
        (FOLDER / f"{name}.svg").write_text(draw(record, runs, columns), encoding="utf-8")


def page(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    runs = record["runs"]
    lower = [run for run in runs if how_much_worse(run) < 0.95]
    yield HEAD.format(
        version=record["optax"],
        nan=sum(math.isinf(how_much_worse(run)) for run in runs),
        all=len(runs),
        lower=len(lower),
        names=", ".join(f"`{run['case']}` in {run['dtype']}" for run in lower),
        steps=5 * record["steps_a_point"],
    )
    for run in runs:
        statistics = "<br>".join(
            f"{name}: {percent(error)}, {percent(run['patched']['errors'][name])}"
            for name, error in run["stock"]["errors"].items()
        )
        curves = (run["stock"]["losses"], run["patched"]["losses"], run["reference"])
        last = (f"{final(losses):.2g}" for losses in curves)
        cells = (f"`{run['patch']}`", f"{run['case']}, {run['dtype']}", statistics or "-", *last)
        yield f"| {' | '.join(cells)} |"


def final(losses: Sequence[float | None]) -> float:
    """Return the mean of the last points of a curve."""
    return math.nan if None in losses[-5:] else math.fsum(map(float, losses[-5:])) / 5


def how_much_worse(run: Run) -> float:
    """Return the final loss of stock over that of patched optax; infinity for NaN."""
    stock = final(run["stock"]["losses"])
    return math.inf if math.isnan(stock) else stock / final(run["patched"]["losses"])


def percent(error: float | None) -> str:
    """Write a relative error."""
    return "NaN" if error is None else f"{error:.1e}"


def draw(record: Mapping[str, Any], runs: Sequence[Run], columns: int) -> str:
    """Draw a panel a run, with a legend above."""
    large = columns == 2
    wide = (WIDTH - MARGIN) / columns
    high = 190 if large else 124
    svg = Svg(WIDTH, 62 + high * -(-len(runs) // columns), TITLE)
    svg.text(MARGIN, 24, TITLE, font_size=15, font_weight="bold")
    x = MARGIN
    for words, line in (
        (f"stock optax {record['optax']}", "red"),
        ("with optax_dtypefix", "blue"),
        ("reference, computed in float64", "ink"),
    ):
        draw_line(svg, [(x, 44), (x + 30, 44)], line, large=True)
        svg.text(x + 36, 48, words, font_size=12)
        x += 70 + 7 * len(words)
    for index, run in enumerate(runs):
        left, top = MARGIN + index % columns * wide, 62 + index // columns * high
        draw_run(svg, record, run, (left, top, wide, high))
    return str(svg)


def draw_line(svg: Svg, points: list[tuple[float, float]], line: str, *, large: bool) -> None:
    """Draw a curve in the style of its kind: neither of three curves hides another."""
    style = {"blue": (5, ""), "ink": (1.3, "4 3"), "red": (1.8, "")}
    width, dashes = style[line]
    more = {"stroke_dasharray": dashes} if dashes else {}
    svg.line(points, line, stroke_width=width if large else 0.75 * width, **more)


def draw_run(
    svg: Svg, record: Mapping[str, Any], run: Run, place: tuple[float, float, float, float]
) -> None:
    """Draw one panel; a place is left, top, width and height."""
    left, top, width, height = place
    large = width > WIDTH / 3
    curves = {
        "blue": run["patched"]["losses"],
        "ink": run["reference"],
        "red": run["stock"]["losses"],
    }
    numbers = [loss for losses in curves.values() for loss in losses if loss is not None]
    low, high = min(numbers) / 1.15, max(numbers) * 1.15
    x0, x1 = left + 34, left + width - (62 if large else 12)
    y0, y1 = top + height - (26 if large else 10), top + (24 if large else 32)

    def at(index: int, loss: float) -> tuple[float, float]:
        x = x0 + (x1 - x0) * (index + 1) / len(run["reference"])
        return x, y0 + (y1 - y0) * math.log(loss / low) / math.log(high / low)

    name, _, variant = run["case"].partition(", ")
    if large:
        svg.text(x0, top + 14, f"{name}, {run['dtype']}", font_size=13, font_weight="bold")
    else:
        words = f"{variant}, {run['dtype']}" if variant else run["dtype"]
        svg.text(x0, top + 14, name, font_weight="bold")
        svg.text(x0, top + 26, words, "muted", font_size=10)
    draw_axes(svg, (x0, y0, x1, y1), lambda loss: at(0, loss)[1], ticks(low, high))
    if large:
        for step in (1000, 2000, 3000):
            x = at(step // record["steps_a_point"] - 1, low)[0]
            svg.text(x, y0 + 15, f"{step:,}", "muted", text_anchor="middle", font_size=10)
        svg.text(x0, y0 + 15, "step", "muted", font_size=10)
    for line, losses in curves.items():
        points = [at(index, loss) for index, loss in enumerate(losses) if loss is not None]
        if points:
            draw_line(svg, points, line, large=large)
        if None in losses:
            start = losses.index(None)
            x, y = at(start, losses[start - 1] if start else curves["ink"][0])
            svg.line([(x - 4, y - 4), (x + 4, y + 4)], line, stroke_width=2)
            svg.line([(x - 4, y + 4), (x + 4, y - 4)], line, stroke_width=2)
            when = f" before step {(start + 1) * record['steps_a_point']:,}" if large else ""
            svg.text(x + 9, y + 4, f"NaN{when}", line, font_weight="bold")
    if large:
        draw_final(svg, run, x1 + 6, lambda loss: at(0, loss)[1])


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers for a logarithmic axis: powers of ten if there are enough of them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [
            f * 10.0**power for power in powers for f in factors if low <= f * 10.0**power <= high
        ]
        if len(found) > 1:
            break
    return found


def draw_axes(
    svg: Svg,
    place: tuple[float, float, float, float],
    height_of: Callable[[float], float],
    numbers: Sequence[float],
) -> None:
    """Draw the frame of a panel and its grid; a place is left, bottom, right and top."""
    x0, y0, x1, y1 = place
    for number in numbers:
        y = height_of(number)
        svg.line([(x0, y), (x1, y)], "rule")
        svg.text(x0 - 5, y + 4, f"{number:g}", "muted", text_anchor="end", font_size=10)
    svg.line([(x0, y1), (x0, y0), (x1, y0)], "muted")


def draw_final(svg: Svg, run: Run, x: float, height_of: Callable[[float], float]) -> None:
    """Write the final losses of stock and patched beside the ends of their curves."""
    stock, patched = (final(run[way]["losses"]) for way in ("stock", "patched"))
    y = height_of(patched)
    svg.text(x, y + 4, f"{patched:.2g}", "blue", font_weight="bold")
    if not math.isnan(stock):
        svg.text(x, min(height_of(stock), y - 14) + 4, f"{stock:.2g}", "red", font_weight="bold")


if __name__ == "__main__":
    main()
