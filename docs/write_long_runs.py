"""Write the figures of docs/long-runs.md, and three pictures from docs/long-runs.json.

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
from support.renew import DOCS, read, renewed, rows
from support.svg import MARGIN, WIDTH, LogAxis, Svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Run = Mapping[str, Any]

GAINS = (
    ("inject_hyperparams(adam)", "bfloat16"),
    ("rmsprop(decay=0.999)", "bfloat16"),
    ("transformer, adamw", "bfloat16"),
    ("adam", "float16"),
    ("clip_by_global_norm, norms of hundreds", "float16"),
)
"""The runs that the README shows."""

REACHED = {
    "stock": ("red", "stock", 266),
    "patched": ("amber", "rounding off", 328),
    "rounded": ("blue", "patched", 390),
    "master_weights": ("green", "master_weights", 452),
}
"""The ways that the README shows: their color, name, and where the column of their figures ends."""

MARKS = {
    "red": (6, "square"),
    "blue": (5, "circle"),
    "amber": (5, "right"),
    "green": (4, "diamond"),
}
"""Radius and shape for each color. A later mark is drawn over the earlier ones."""

HALVES = ("bfloat16", "float16")
GAP, LANE, LINE, PANEL = 52, 8, 16, 124
"""The heights of a run: in the README's picture, with a lane for each way; marks; and curves."""

WAYS = {
    "stock": "stock optax",
    "rounded": "default patches",
    "patched": "default patches, rounding of params switched off",
    "opt-ins": "the same, with `float32_moments`",
    "master_weights": "`master_weights(tx)`",
    "float32": "float32 params",
    "float64": "float64 params",
}
"""The ways to train, and what a user writes for each."""

LOSSES = [way for way in WAYS if way not in ("opt-ins", "float64")]
"""The ways whose losses stand in the last table."""

SHOWN = ("transformer, adamw", "bfloat16")
"""The run whose memory stands in the summary."""

COUNT = "- The figures are of {stable} runs: all {cases} of the\n"
UNSTABLE = "[last table](#every-way) but {unstable}.\n"
STOCK = "\nstock optax {version}, with the patches but"
ENDS = """\
Stock reaches NaN in {nan} of the {all}
runs in this picture. It ends at least 5 % lower than patched optax in {lower} runs: {names}.
In {helped} patched optax"""
LAST = "the mean over the last {steps} steps."


def main() -> None:
    """Write the page and draw the pictures."""
    record = json.loads((DOCS / "long-runs.json").read_text("utf-8"))
    (DOCS / "long-runs.md").write_text(page(record), encoding="utf-8")
    pictures = {"one-import": draw_curves, "gains": draw_gains, "long-runs": draw_runs}
    for name, draw in pictures.items():
        (DOCS / f"{name}.svg").write_text(draw(record), encoding="utf-8")


def page(record: Mapping[str, Any]) -> str:
    """Return the page with new figures."""
    runs, cases = record["runs"], record["ways"]
    others = ("float64", "perturbed")
    stable = [case for case in cases if all(abs(excess(case, way)) <= 0.02 for way in others)]
    lower = [run for run in runs if how_much_worse(run) < 0.95]
    return renewed(
        read("long-runs.md"),
        [record],
        [
            rows(choice(cases, stable)),
            rows(statistics(run) for run in runs if run["stock"]["errors"]),
            rows(map(every_way, cases)),
        ],
        about_count=COUNT,
        about_unstable=UNSTABLE,
        about_stock=STOCK,
        about_ends=ENDS,
        about_last=LAST,
        stable=len(stable),
        cases=len(cases),
        unstable=in_code(dict.fromkeys(case["case"] for case in cases if case not in stable)),
        version=record["optax"],
        nan=sum(math.isinf(how_much_worse(run)) for run in runs),
        all=len(runs),
        lower=len(lower),
        helped=in_code(run["case"] for run in lower if ends_as_the_reference(run)),
        names=", ".join(f"`{run['case']}` in {run['dtype']}" for run in lower),
        steps=5 * record["steps_a_point"],
    )


def in_code(names: Iterable[str]) -> str:
    """Join names."""
    return ", ".join(f"`{name}`" for name in names)


def choice(cases: Sequence[Run], stable: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """Yield what a user writes for each way, and its figures."""
    shown = next(case for case in cases if (case["case"], case["dtype"]) == SHOWN)
    for way, words in WAYS.items():
        of_all = sorted(excess(case, way) for case in stable)
        figures = (excess(shown, way), of_all[len(of_all) // 2], of_all[-1])
        yield (words, *map(percent, figures), *(f"{size:.0f}" for size in shown[way][1:]))


def statistics(run: Run) -> tuple[str, ...]:
    """Return the cells of a run on stock and patched optax, and of the reference."""
    errors = "<br>".join(
        f"{name}: {scientific(error)}, {scientific(run['patched']['errors'][name])}"
        for name, error in run["stock"]["errors"].items()
    )
    curves = (run["stock"]["losses"], run["patched"]["losses"], run["reference"])
    last = (f"{final(losses):.2g}" for losses in curves)
    return (f"`{run['patch']}`", f"{run['case']}, {run['dtype']}", errors, *last)


def every_way(case: Run) -> tuple[str, ...]:
    """Return the losses of a run."""
    losses = (case[way][0] for way in LOSSES)
    shown = ("NaN" if loss is None else f"{loss:.3g}" for loss in losses)
    return (f"{case['case']}, {case['dtype']}", *shown)


def excess(case: Run, way: str) -> float:
    """Return how far a loss is above that in float32; infinity for NaN."""
    loss = case[way][0]
    return math.inf if loss is None else loss / case["float32"][0] - 1


def percent(share: float) -> str:
    """Format a share, shortly enough for a phone."""
    return "NaN" if math.isinf(share) else f"{share:+.{int(share < 0.1)}%}"


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


CURVES = {"float32": ("silver", 6), "stock": ("red", 1.6), "patched": ("blue", 1.6)}
"""The curves of the README's first picture: their color and width, in the order of drawing."""


def draw_curves(record: Mapping[str, Any]) -> str:
    """Draw the loss of the transformer in float32, and in bfloat16 on stock and patched optax."""
    last = {way: final(record["curves"][way]) for way in CURVES}
    names = {way: f"bfloat16, {way}" for way in CURVES} | {"float32": "float32"}
    ends = ", ".join(f"{names[way]} {loss:.3f}" for way, loss in last.items())
    window = record["steps_a_point"]
    svg = Svg(322, "Loss of a small transformer, adamw", f"Loss after 3,000 steps: {ends}.")
    words = {way: f"{names[way]} {loss:.3f}" for way, loss in last.items()}
    svg.legend(46, [(color, words[way], "square") for way, (color, _) in CURVES.items()])
    svg.text(MARGIN, 66, f"One run each. A point is the mean of {window} steps.", "muted")
    left, right, top, bottom = MARGIN + 30, WIDTH - MARGIN, 96, 284
    low, high = 1.15, 4.0

    def place(loss: float) -> float:
        return bottom - (bottom - top) * math.log(loss / low) / math.log(high / low)

    svg.text(MARGIN, top - 10, "loss", "muted", font_size=11)
    for loss in (1.2, 1.5, 2, 2.5, 3, 4):
        svg.line([(left, place(loss)), (right, place(loss))], "rule")
        svg.text(left - 6, place(loss) + 4, f"{loss:.1f}", "muted", text_anchor="end", font_size=11)
    for step in (500, 1000, 1500, 2000, 2500, 3000):
        x = left + (right - left) * step / 3000
        anchor = "end" if step == 3000 else "middle"
        svg.text(x, bottom + 18, f"{step:,}", "muted", text_anchor=anchor, font_size=11)
    svg.text((left + right) / 2, bottom + 33, "step", "muted", font_size=11)
    for way, (color, width) in CURVES.items():
        losses = record["curves"][way]
        points = [
            (left + (right - left) * (index + 1) / len(losses), place(loss))
            for index, loss in enumerate(losses)
        ]
        svg.line(points, color, stroke_width=width)
    return str(svg)


def draw_gains(record: Mapping[str, Any]) -> str:
    """Draw the final losses that a user can reach, for some runs, and write them beside."""
    cases = {(case["case"], case["dtype"]): case for case in record["ways"]}
    top = 84
    bottom = top + GAP * len(GAINS)
    ratios = {key: {way: 1 + excess(cases[key], way) for way in REACHED} for key in GAINS}
    told = (
        f"{', '.join(key)}: "
        + ", ".join(f"{REACHED[way][1]} {times(ratio)}" for way, ratio in of.items())
        for key, of in ratios.items()
    )
    svg = Svg(bottom + 26, "Final loss in half precision over that in float32", "; ".join(told))
    axis = LogAxis(MARGIN + 8, 202, 1, 32)
    axis.draw(svg, top, bottom, (1, 2, 4, 8, 16, 32))
    svg.legend(46, [(color, words, MARKS[color][1]) for color, words, _ in REACHED.values()])
    svg.text(MARGIN, 74, "optimizer, dtype of the params", "muted")
    for color, _, right in REACHED.values():
        svg.mark(right - 14, 70, *mark_of(color))
    for row, (key, of) in enumerate(ratios.items()):
        name = top + GAP * row + 14
        svg.text(axis.left + 8, name, ", ".join(key))
        for lane, (way, ratio) in enumerate(of.items()):
            color, _, right = REACHED[way]
            y = name + 10 + LANE * lane  # Each way has its own line: no mark hides another.
            if math.isfinite(ratio):
                svg.mark(axis.place(ratio), y, 3, color, MARKS[color][1])
            else:
                svg.cross(axis.right + 14, y, color)
            svg.text(right, name + 26, times(ratio), color, text_anchor="end", font_weight="bold")
    return str(svg)


def times(ratio: float) -> str:
    """Format a loss over another."""
    if math.isinf(ratio):
        return "NaN"
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"


def draw_runs(record: Mapping[str, Any]) -> str:
    """Draw two marks a run, for stock and patched optax, and curves of some runs below."""
    runs = sorted(record["runs"], key=lambda run: -how_much_worse(run))
    bottom = 78 + LINE * (len(runs) + len(HALVES))
    worst: dict[str, Run] = {}
    for run in runs:
        # Where stock is NaN at once, or ends where patched optax does, two curves say no more.
        if 1.05 < how_much_worse(run) < math.inf:
            worst.setdefault(run["patch"], run)
    height = bottom + 66 + PANEL * -(-len(worst) // 2)
    svg = Svg(height, "Final loss over that of a float64 reference")
    names = {"red": "stock optax", "blue": "patched, stochastic_rounding off"}
    svg.legend(48, [(color, words, MARKS[color][1]) for color, words in names.items()])
    axis = LogAxis(250, WIDTH - 60, 0.5, 48)
    axis.draw(svg, 62, bottom, (0.5, 1, 2, 4, 8, 16, 32))
    y = 60
    for dtype in HALVES:
        y += LINE
        svg.text(MARGIN, y + 4, dtype, font_weight="bold")
        for run in (run for run in runs if run["dtype"] == dtype):
            y += LINE
            svg.text(axis.left - 16, y + 4, run["case"], text_anchor="end", font_size=11)
            for way, color in (("stock", "red"), ("patched", "blue")):
                ratio = final(run[way]["losses"]) / final(run["reference"])
                if math.isfinite(ratio):
                    svg.mark(axis.place(ratio), y, *mark_of(color))
                else:
                    draw_nan(svg, axis.right + 18, y, color)
    svg.text(MARGIN, bottom + 44, "Loss over 3,000 steps", font_size=14, font_weight="bold")
    svg.text(MARGIN + 180, bottom + 44, "(dashed: the reference)", "muted")
    for index, run in enumerate(worst.values()):
        column, line = index % 2, index // 2
        numbers = [loss for losses in curves(run).values() for loss in losses if loss is not None]
        left, top = MARGIN + column * (WIDTH - MARGIN) / 2, bottom + 58 + PANEL * line
        draw_run(Panel(svg, left, top, min(numbers) / 1.15, max(numbers) * 1.15), run)
    return str(svg)


def mark_of(color: str) -> tuple[float, str, str]:
    """Return the radius, the color and the shape of a mark."""
    radius, shape = MARKS[color]
    return radius, color, shape


def draw_nan(svg: Svg, x: float, y: float, color: str) -> None:
    """Draw a cross, and NaN beside it."""
    svg.cross(x, y, color)
    svg.text(x + 9, y + 4, "NaN", color, font_weight="bold", font_size=11)


def curves(run: Run) -> dict[str, Sequence[float | None]]:
    """Return the curves by color. A later curve is drawn over the earlier ones."""
    return {
        "blue": run["patched"]["losses"],
        "ink": run["reference"],
        "red": run["stock"]["losses"],
    }


@dataclasses.dataclass(frozen=True)
class Panel:
    """A place in a picture, for losses from ``low`` to ``high``."""

    svg: Svg
    left: float
    top: float
    low: float
    high: float

    @property
    def x(self) -> tuple[float, float]:
        """The left and right ends of the curves."""
        return self.left + 36, self.left + (WIDTH - MARGIN) / 2 - 12

    def y(self, loss: float) -> float:
        """Return the height of a loss on the logarithmic axis."""
        bottom, top = self.top + PANEL - 12, self.top + 40
        return bottom + (top - bottom) * math.log(loss / self.low) / math.log(self.high / self.low)


def draw_run(panel: Panel, run: Run) -> None:
    """Draw the curves of one run."""
    name, _, variant = run["case"].partition(", ")
    x0, x1 = panel.x
    panel.svg.text(x0, panel.top + 14, name, font_weight="bold")
    words = f"{variant}, {run['dtype']}" if variant else run["dtype"]
    panel.svg.text(x0, panel.top + 29, words, "muted", font_size=11)
    for loss in ticks(panel.low, panel.high):
        y = panel.y(loss)
        panel.svg.line([(x0, y), (x1, y)], "rule")
        panel.svg.text(x0 - 5, y + 4, f"{loss:g}", "muted", text_anchor="end", font_size=11)
    y0, y1 = panel.y(panel.low), panel.y(panel.high)
    panel.svg.line([(x0, y1), (x0, y0), (x1, y0)], "muted")
    points = len(run["reference"])
    xs = [x0 + (x1 - x0) * (index + 1) / points for index in range(points)]
    for color, losses in curves(run).items():
        finite = [(x, panel.y(loss)) for x, loss in zip(xs, losses) if loss is not None]
        if finite:
            # Each color has its own width, so that equal curves all show.
            width, dashes = {"blue": (4, "none"), "ink": (1.2, "4 3"), "red": (1.6, "none")}[color]
            panel.svg.line(finite, color, stroke_width=width, stroke_dasharray=dashes)


def ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten in a range; if there is only one, also three times each."""
    powers = [10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)))]
    tens = [power for power in (*powers, 10 * powers[-1]) if low <= power <= high]
    return tens if len(tens) > 1 else [*tens, *(3 * p for p in powers if low <= 3 * p <= high)]


if __name__ == "__main__":
    main()
