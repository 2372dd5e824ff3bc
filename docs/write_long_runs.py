"""Write docs/long-runs.md and its two pictures from docs/long-runs.json.

Run ``python docs/write_long_runs.py``. ``evidence.long_runs.record`` writes the JSON file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.recorded import sentence
from support.svg import Svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Run = Mapping[str, Any]

FOLDER = Path(__file__).parent

GAINS = (
    ("inject_hyperparams(adam)", "bfloat16"),
    ("clip_by_global_norm, norms of hundreds", "float16"),
)
"""The runs that the README shows: stock gives NaN, and stock stands still."""

WIDTH, LARGE_WIDTH, MARGIN, TOP = 830, 600, 12, 62
TITLE = "Training loss with params in half precision (log scale)"

WAYS = {
    "stock": "stock optax",
    "patched": "default patches",
    "opt-ins": "`OPTAX_DTYPEFIX_ENABLE=float32_moments,float32_averages`",
    "master_weights": "`tx = optax_dtypefix.master_weights(tx)`",
    "stochastic_rounding": "`tx = optax_dtypefix.master_weights(tx, rounding_key=key)`",
    "by_turns": "`tx = optax_dtypefix.master_weights(tx, copy=False, narrow_state=True)`",
    "float32": "float32 params",
    "float64": "float64 params",
}
"""The ways to train, and what a user writes for each."""

SHOWN = ("transformer, adamw", "bfloat16")
"""The run whose memory stands in the summary."""

CHOICE = """\
# 3,000 steps in half precision

{recorded_on}

Half-precision params lose small updates: a bfloat16 param of 1 does not move by 0.001. To train as
in float32, keep a float32 copy of the params, or round them at random or by turns. Each takes one
line around the whole optimizer:

| what you write | final loss above that of float32: transformer | median | worst | bytes a param |
|---|---|---|---|---|"""

CHOICE_NOTES = """
- The figures are of all runs in the [last table](#every-way) but {unstable}.
  These have no stable end: their float32 loss differs by more than 2 % from that in float64, or
  from that of initial params which are larger by a millionth.
- The small transformer predicts the characters of Python's own documentation, with adamw and
  bfloat16 params. *Bytes* are those of its params and optimizer state; gradients are extra.
- Activations take no more memory: the model still computes in half precision.

## Stock and patched
"""

HEAD = """\
Each run trains a softmax regression on scikit-learn's digits, with params in half precision: with
stock optax {version}, with the patches, and as a reference in float64 NumPy.

![Loss over 3,000 steps: stock, patched and reference](long-runs.svg)

The picture starts with the runs in which stock ends worst. Stock reaches NaN in {nan} of {all}
runs. It ends at least 5 % lower than patched optax in {lower} runs: {names}.
In {helped} the reference ends where patched optax does, so stock's rounding error happens to help
on this problem. Of the others, the end depends on the last bit: it also differs between float32 and
float64.

In the table:

- *Statistics* are scalars that the optimizer keeps, and for `float32_moments` its moments. The two
  figures, of stock and of patched optax, are the largest relative error at any step, given the same
  gradients.
- *Loss* is the mean over the last {steps} steps.
- The *reference* computes in float64. It rounds params, gradients and updates to the dtype of the
  run, and keeps its state exact. In float16 patched optax keeps a moment at 6e-8 or more, so its
  steps are smaller with tiny gradients.

| patch | run | statistics: stock, patched | loss: stock | patched | reference |
|---|---|---|---|---|---|"""

EVERY_WAY = """
## Every way

The mean loss of the last 300 steps; in brackets, the bytes a param of params and optimizer state.
*Copy*, *key* and *turns* are the three forms of `master_weights`, in the order of the first table.

| run | stock | default | opt-ins | copy | key | turns | float32 | float64 |
|---|---|---|---|---|---|---|---|---|"""


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
    yield from choice(record)
    runs = record["runs"]
    lower = [run for run in runs if how_much_worse(run) < 0.95]
    helped = [f"`{run['case']}`" for run in lower if ends_as_the_reference(run)]
    yield HEAD.format(
        version=record["optax"],
        nan=sum(math.isinf(how_much_worse(run)) for run in runs),
        all=len(runs),
        lower=len(lower),
        helped=", ".join(helped),
        names=", ".join(f"`{run['case']}` in {run['dtype']}" for run in lower),
        steps=5 * record["steps_a_point"],
    )
    for run in runs:
        statistics = "<br>".join(
            f"{name}: {scientific(error)}, {scientific(run['patched']['errors'][name])}"
            for name, error in run["stock"]["errors"].items()
        )
        curves = (run["stock"]["losses"], run["patched"]["losses"], run["reference"])
        last = (f"{final(losses):.2g}" for losses in curves)
        cells = (f"`{run['patch']}`", f"{run['case']}, {run['dtype']}", statistics or "-", *last)
        yield f"| {' | '.join(cells)} |"
    yield from every_way(record["ways"])


def choice(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the summary of the ways."""
    cases = record["ways"]
    yield CHOICE.format(recorded_on=sentence([record]))
    others = ("float64", "perturbed")
    stable = [case for case in cases if all(abs(excess(case, way)) <= 0.02 for way in others)]
    shown = next(case for case in cases if (case["case"], case["dtype"]) == SHOWN)
    for way, words in WAYS.items():
        of_all = sorted(excess(case, way) for case in stable)
        figures = (excess(shown, way), of_all[len(of_all) // 2], of_all[-1])
        cells = (words, *map(percent, figures), f"{shown[way][1]:.0f}")
        yield f"| {' | '.join(cells)} |"
    unstable = dict.fromkeys(f"`{case['case']}`" for case in cases if case not in stable)
    yield CHOICE_NOTES.format(unstable=", ".join(unstable))


def excess(case: Run, way: str) -> float:
    """Return how far a loss is above that in float32; infinity for NaN."""
    loss = case[way][0]
    return math.inf if loss is None else loss / case["float32"][0] - 1


def percent(share: float) -> str:
    """Format a share."""
    return "NaN" if math.isinf(share) else f"{share:+.1%}"


def every_way(cases: Sequence[Run]) -> Iterator[str]:
    """Yield the table of all runs in all ways."""
    yield EVERY_WAY
    for case in cases:
        pairs = (case[way] for way in WAYS)
        cells = ("NaN" if loss is None else f"{loss:.3g} ({size:.3g})" for loss, size in pairs)
        yield f"| {case['case']}, {case['dtype']} | {' | '.join(cells)} |"


def final(losses: Sequence[float | None]) -> float:
    """Return the mean of the last points of a curve."""
    return sum(math.nan if loss is None else loss for loss in losses[-5:]) / 5


def how_much_worse(run: Run) -> float:
    """Return the final loss of stock over that of patched optax; infinity for NaN."""
    stock = final(run["stock"]["losses"])
    return math.inf if math.isnan(stock) else stock / final(run["patched"]["losses"])


def ends_as_the_reference(run: Run) -> bool:
    """Whether patched optax ends within 5 % of the reference."""
    return math.isclose(final(run["patched"]["losses"]), final(run["reference"]), rel_tol=0.05)


def scientific(error: float | None) -> str:
    """Format a relative error."""
    return "NaN" if error is None else f"{error:.1e}"


def draw(record: Mapping[str, Any], runs: Sequence[Run], columns: int) -> str:
    """Draw a panel a run, with a legend above."""
    large = columns == 2  # For a phone too.
    total, height = (LARGE_WIDTH, 210) if large else (WIDTH, 124)
    width = (total - MARGIN) / columns
    svg = Svg(total, TOP + height * -(-len(runs) // columns), TITLE)
    svg.text(MARGIN, 24, TITLE, font_size=17, font_weight="bold")
    x = MARGIN
    for words, color in (
        (f"stock optax {record['optax']}", "red"),
        ("with optax_dtypefix", "blue"),
        ("reference in float64", "ink"),
    ):
        draw_curve(svg, [(x, 44), (x + 30, 44)], color)
        svg.text(x + 36, 49, words, font_size=14)
        x += 60 + 7.5 * len(words)
    if not large:
        steps = len(runs[0]["reference"]) * record["steps_a_point"]
        svg.text(x, 49, f"each over {steps:,} steps", "muted", font_size=14)
    for index, run in enumerate(runs):
        left, top = MARGIN + index % columns * width, TOP + index // columns * height
        numbers = [loss for losses in curves(run).values() for loss in losses if loss is not None]
        panel = Panel(svg, left, top, width, height, min(numbers) / 1.15, max(numbers) * 1.15)
        draw_run(panel, run, record["steps_a_point"])
    return str(svg)


def curves(run: Run) -> dict[str, Sequence[float | None]]:
    """Return the curves by color. A later curve is drawn over the earlier ones."""
    return {
        "blue": run["patched"]["losses"],
        "ink": run["reference"],
        "red": run["stock"]["losses"],
    }


def draw_curve(
    svg: Svg, points: list[tuple[float, float]], color: str, *, large: bool = True
) -> None:
    """Draw a curve. Each color has its own width, so that equal curves all show."""
    width, dashes = {"blue": (5, "none"), "ink": (1.3, "4 3"), "red": (1.8, "none")}[color]
    svg.line(points, color, stroke_width=width if large else 0.75 * width, stroke_dasharray=dashes)


@dataclasses.dataclass(frozen=True)
class Panel:
    """A place in a picture, for losses from ``low`` to ``high``."""

    svg: Svg
    left: float
    top: float
    width: float
    height: float
    low: float
    high: float

    @property
    def large(self) -> bool:
        """Whether there is space for words."""
        return self.width > WIDTH / 3

    @property
    def x(self) -> tuple[float, float]:
        """The left and right ends of the curves."""
        return self.left + 34, self.left + self.width - (66 if self.large else 12)

    def y(self, loss: float) -> float:
        """Return the height of a loss on the logarithmic axis."""
        bottom = self.top + self.height - (28 if self.large else 10)
        top = self.top + (30 if self.large else 36)
        return bottom + (top - bottom) * math.log(loss / self.low) / math.log(self.high / self.low)


def draw_run(panel: Panel, run: Run, steps_a_point: int) -> None:
    """Draw one run."""
    draw_axes(panel)
    draw_names(panel, run)
    points = len(run["reference"])
    x0, x1 = panel.x
    xs = [x0 + (x1 - x0) * (index + 1) / points for index in range(points)]
    for color, losses in curves(run).items():
        finite = [(x, panel.y(loss)) for x, loss in zip(xs, losses) if loss is not None]
        if finite:
            draw_curve(panel.svg, finite, color, large=panel.large)
        if None in losses:
            start = losses.index(None)
            level = (losses[start - 1] if start else None) or run["reference"][0]
            draw_nan(panel, xs[start], panel.y(level), color)
    if panel.large:
        for step in (1000, 2000, 3000):
            x = x0 + (x1 - x0) * step / (points * steps_a_point)
            y = panel.y(panel.low) + 17
            panel.svg.text(x, y, f"{step:,}", "muted", text_anchor="middle", font_size=13)
        panel.svg.text(x0, y, "step", "muted", font_size=13)
        draw_final(panel, run)


def draw_names(panel: Panel, run: Run) -> None:
    """Write what is trained, and in which dtype."""
    name, _, variant = run["case"].partition(", ")
    x, y = panel.x[0], panel.top + 14
    if panel.large:
        panel.svg.text(x, y, f"{name}, {run['dtype']}", font_size=14)
    else:
        words = f"{variant}, {run['dtype']}" if variant else run["dtype"]
        panel.svg.text(x, y, name, font_weight="bold")
        panel.svg.text(x, y + 12, words, "muted", font_size=10)


def draw_nan(panel: Panel, x: float, y: float, color: str) -> None:
    """Mark the end of a curve with a cross."""
    arm, font = (7, 17) if panel.large else (4, 11)
    for sign in (1, -1):
        ends = [(x - arm, y - sign * arm), (x + arm, y + sign * arm)]
        panel.svg.line(ends, color, stroke_width=arm / 2)
    panel.svg.text(x + 2 * arm, y + arm, "NaN", color, font_weight="bold", font_size=font)


def draw_axes(panel: Panel) -> None:
    """Draw the grid and the axes."""
    x0, x1 = panel.x
    for loss in ticks(panel.low, panel.high):
        y = panel.y(loss)
        panel.svg.line([(x0, y), (x1, y)], "rule")
        size = 13 if panel.large else 10
        panel.svg.text(x0 - 5, y + 4, f"{loss:g}", "muted", text_anchor="end", font_size=size)
    y0, y1 = panel.y(panel.low), panel.y(panel.high)
    panel.svg.line([(x0, y1), (x0, y0), (x1, y0)], "muted")


def ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten in a range; if there is only one, also three times each."""
    powers = [10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)))]
    tens = [power for power in (*powers, 10 * powers[-1]) if low <= power <= high]
    return tens if len(tens) > 1 else [*tens, *(3 * p for p in powers if low <= 3 * p <= high)]


def draw_final(panel: Panel, run: Run) -> None:
    """Write the final losses of stock and patched beside the ends of their curves."""
    stock, patched = (final(run[way]["losses"]) for way in ("stock", "patched"))
    x = panel.x[1] + 6
    for loss, color in ((patched, "blue"), (stock, "red")):
        if not math.isnan(loss):
            y = panel.y(loss) + 6
            panel.svg.text(x, y, f"{loss:.2g}", color, font_weight="bold", font_size=17)


if __name__ == "__main__":
    main()
