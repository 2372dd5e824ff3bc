"""Write the figures and the picture of docs/benchmarks.md, from the records in docs/benchmarks/.

Run ``python docs/write_benchmarks.py``. ``python benchmarks`` writes the records.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.renew import DOCS, read, renewed, rows
from support.svg import MARGIN, WIDTH, LogAxis, Svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

GAINS = """\
The import takes {import_ms}, once. {same} of {steps} train steps cost nothing: they compile to
stock's program. Of the others, {less}."""
MEMORY = "optax {optax}: stock, then patched. "
EQUAL = "\n{equal} of {all} steps no figure differs"
ON_ACCELERATORS = "with optax {optax}\n({compilers})"

RADII = {"1e4": 2.2, "1e6": 3.4, "5e7": 4.8}
"""Of the circle for each number of params."""
TITLE = "Time of a train step, relative to stock"
LINE = 16
AXIS = LogAxis(222, WIDTH - MARGIN - 8, 0.5, 2.5)
SHOWN = 10
"""The number of steps in the picture, for each release."""
MARKS = {"faster": ("blue", "left"), "no clear difference": ("silver", "circle")}
MARKS["slower"] = ("red", "right")


def page(
    records: list[dict[str, Any]],
    memory: dict[str, Any],
    compiled: dict[str, Any],
    devices: list[dict[str, Any]],
) -> str:
    """Return the page with new figures."""
    newest = records[-1]
    text = read("benchmarks.md")
    head = rows([("step", *columns(records, devices)), ("---",) * (1 + len(records + devices))])
    text = re.sub(r"^\| step \|.*\n.*\n", head, text, count=1, flags=re.MULTILINE)
    tables = [
        rows(common(columns(records, devices))),
        rows(map(measured_on, records)),
        rows(on_accelerators(compiled["steps"])),
        rows([imports(newest["imports"])]),
        rows(times(newest["late"])),
        rows(rows_of_memory(memory)),
        rows(scale(newest["scale"])),
        rows(times(newest["calls"])),
        rows(steps(newest)),
    ]
    return renewed(
        text,
        [*records, memory, compiled, *devices],
        tables,
        about_gains=GAINS,
        about_memory=MEMORY,
        about_equal=EQUAL,
        about_accelerators=ON_ACCELERATORS,
        compilers=", ".join(compiled["compilers"].values()),
        **gains(newest),
        optax=memory["optax"],
        equal=memory["steps"] - len(memory["different"]),
        all=memory["steps"],
    )


def columns(
    records: list[dict[str, Any]], devices: list[dict[str, Any]]
) -> dict[str, dict[str, str]]:
    """Return the times of the common steps: a column for each release, and for each device.

    Those of a device are measured without the model, with the number of params of its record.
    """
    releases = {f"optax {record['optax']}": ratios_of_release(record) for record in records}
    return {**releases, **{record["device"]: ratios_of_device(record) for record in devices}}


def measured_on(record: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells about a record."""
    link = f"[optax {record['optax']}](benchmarks/{record['optax']}.json)"
    return (link, record["jax"], record["python"], f"{record['device']}, {record['machine']}")


def times(of: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield what was measured, and its times."""
    return ((name, *map(seconds, found.values())) for name, found in of.items())


def common(found: dict[str, dict[str, str]]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each step that one of the releases has."""
    of_releases = (of for name, of in found.items() if name.startswith("optax "))
    for name in dict.fromkeys(name for of in of_releases for name in of):
        yield (name, *(of.get(name, "") for of in found.values()))


def ratios_of_release(record: dict[str, Any]) -> dict[str, str]:
    """Return the times of the common steps with the largest number of params."""
    *_, largest = RADII
    return {f["step"]: step(f["times"][largest]) for f in record["steps"] if f["common"]}


def ratios_of_device(record: dict[str, Any]) -> dict[str, str]:
    """Return the times of the steps that ran on a device, stock and patched."""
    found = {}
    for name, sides in record["steps"].items():
        if sides["same"]:
            found[name] = "same"
        elif all("ms" in sides.get(side, {}) for side in ("stock", "patched")):
            found[name] = f"{sides['patched']['ms'][1] / sides['stock']['ms'][1]:.2f}"
    return found


def gains(record: dict[str, Any]) -> dict[str, object]:
    """Return the figures of the first paragraph."""
    counts = record["counts"]
    return {
        "import_ms": f"{record['imports']['more'][1] * 1e3:.0f} ms longer",
        "steps": counts["steps"],
        "same": counts["same"],
        "less": " and ".join(
            f"{number} {words}"
            for number, words in (
                (counts["run_patched_only"], "raise an error on stock and run with the patches"),
                (counts["float64"][0] - counts["float64"][1], "no longer compute in float64"),
                (counts["traces"][0], "are traced less often"),
            )
            if number
        ),
    }


def imports(found: dict[str, Any]) -> Iterator[str]:
    """Yield import times: stock, what wrapt and the patches add, and the statement alone."""
    yield seconds(found["stock"])
    for key in ("wrapt more", "more"):
        yield f"{seconds(found[key])}, {found[key][1] / found['stock'][1]:.1%}"
    counts = list(found["instructions"].values())
    yield " and ".join(f"{count / counts[0] - 1:.1%}" for count in counts[1:]) if counts[0] else ""
    yield seconds(found["the statement alone"])
    yield str(found["modules before optax"])


def rows_of_memory(record: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the cells about the memory of compiled steps, but not of those that equal stock's.

    Optimizers with the same figures share a row. In float16 adamw stands for all.
    """
    names: dict[tuple[str, ...], list[str]] = {}
    for name, found in record["different"].items():
        setting, _, optimizer = name.partition(", ")
        if setting == "float16" and not optimizer.startswith("adamw"):
            continue
        figures = (f"{a:g} → {b:g}" for a, b in found.values())
        names.setdefault((setting, *figures), []).append(optimizer)
    for (setting, *figures), optimizers in names.items():
        yield (setting, "; ".join(optimizers), *figures)


ON_EACH = {
    "TPU v5e": ("moved", "temporaries", "compile_s"),
    "H100": ("moved", "temporaries", "kernels", "compile_s"),
}
"""The columns of each accelerator."""


def on_accelerators(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each step that was compiled for accelerators."""
    for title in dict.fromkeys(name.partition(": ")[2] for name in found):
        steps = {machine: found.get(f"{machine}: {title}", {}) for machine in ON_EACH}
        yield (
            *title.split(": "),
            *(pair(steps[machine].get(key)) for machine, keys in ON_EACH.items() for key in keys),
        )


def pair(figures: list[float | None] | None) -> str:
    """Format the figure of stock and ours, or the one that both have; empty without a figure."""
    if not figures:
        return ""
    cells = dict.fromkeys("fails" if figure is None else f"{figure:.3g}" for figure in figures)
    return " → ".join(cells)


def scale(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each large tree and optimizer."""
    for name in dict.fromkeys(name.rpartition(", ")[0] for name in found):
        pairs = (found.get(f"{name}, {verb}") for verb in ("init", "trace", "compile", "check"))
        yield (name, *(f"{of[0]:.3g} → {of[1]:.3g}" if of else "" for of in pairs))


def steps(record: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each step that differs from stock's: its time for each size."""
    for found in record["steps"]:
        times = [step(found["times"][size]) for size in RADII]
        if {*times} != {"same"}:
            yield (found["step"], *times, f"`{found['patch']}`" if found["patch"] else "")


def step(time: Any) -> str:
    """Format the time of a step, relative to stock if stock does not raise."""
    if isinstance(time, str):
        return time
    if "seconds" in time:
        return seconds(time["seconds"])
    return f"{mark(time['ratio'])}{time['ratio'][1]:.2f}"


def seconds(quartiles: Sequence[float]) -> str:
    """Format a time with its unit."""
    value = quartiles[1]
    unit, scale = next(
        (pair for pair in (("s", 1.0), ("ms", 1e3)) if abs(value) * pair[1] >= 1), ("µs", 1e6)
    )
    return f"{mark(quartiles)}{value * scale:.3g} {unit}"


def mark(quartiles: Sequence[float]) -> str:
    """Mark a median whose quartiles are far apart."""
    low, median, high = quartiles
    return "~" if high - low > 0.1 * median else ""


def draw(records: list[dict[str, Any]]) -> str:
    """Draw the times over those of stock, of the steps that differ most, newest release first."""
    ratios = [rows_of(record["steps"]) for record in records]
    svg = Svg(84 + sum(104 + LINE * len(rows) for rows in ratios), TITLE)
    svg.legend(48, [(color, words, shape) for words, (color, shape) in MARKS.items()])
    sizes = zip(RADII.values(), ("10 thousand", "1 million", "50 million params"))
    for index, (radius, words) in enumerate(sizes):
        svg.circle(MARGIN + 5 + 105 * index, 66, radius, "ink")
        svg.text(MARGIN + 16 + 105 * index, 70, words)
    svg.text(WIDTH - MARGIN, 70, "lines: quartiles", text_anchor="end")
    top = 84
    for record, measured in zip(records[::-1], ratios[::-1]):
        counts = record["counts"]
        stack = f"optax {record['optax']}, jax {record['jax']}"
        svg.text(MARGIN, top + 34, f"{counts['same']} of {counts['steps']}", font_size=24)
        svg.text(MARGIN + 130, top + 20, stack, font_weight="bold")
        svg.text(MARGIN + 130, top + 36, "train steps compile to the same program")
        bottom = top + 56 + LINE * len(measured)
        AXIS.draw(svg, top + 48, bottom, (0.5, 0.75, 1, 1.5, 2, 2.5))
        for index, (name, by_size) in enumerate(measured):
            draw_row(svg, top + 62 + LINE * index, name, by_size)
        top = bottom + 48
    return str(svg)


def rows_of(measured: Iterable[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return names and ratios by size of the steps that differ most, the fastest first."""
    rows = []
    for found in measured:
        times = found["times"]
        ratios = {size: times[size]["ratio"] for size in RADII if "ratio" in times[size]}
        if ratios:
            rows.append((found["step"], ratios))
    rows.sort(key=lambda row: at_largest(row[1]))
    largest = sorted(rows, key=lambda row: -abs(math.log(at_largest(row[1]))))[:SHOWN]
    return [row for row in rows if row in largest]


def at_largest(ratios: dict[str, Any]) -> float:
    """Return the median ratio for the largest number of params."""
    *_, (_, median, _) = ratios.values()
    return float(median)


def draw_row(svg: Svg, y: float, name: str, by_size: dict[str, Any]) -> None:
    """Draw the three sizes of one step, and its name on the left."""
    svg.text(AXIS.left - 8, y + 4, name, text_anchor="end", font_size=11)
    for size, (low, median, high) in reversed(by_size.items()):
        verdict = "faster" if high < 1 else "slower" if low > 1 else "no clear difference"
        color, shape = MARKS[verdict]
        svg.line([(AXIS.place(low), y), (AXIS.place(high), y)], color)
        svg.mark(AXIS.place(median), y, RADII[size], color, shape)


def releases() -> list[dict[str, Any]]:
    """Read the records of releases, the newest last."""
    records = [of(file) for file in DOCS.glob("benchmarks/[0-9]*.json")]
    return sorted(records, key=lambda record: Version(record["optax"]))


def page_of(records: list[dict[str, Any]]) -> str:
    """Return the page, from the records of releases and all others."""
    memory, compiled = (of(DOCS / f"benchmarks/{name}.json") for name in ("memory", "accelerators"))
    devices = [of(file) for file in sorted(DOCS.glob("benchmarks/device-*.json"))]
    return page(records, memory, compiled, devices)


def main() -> None:
    """Read the records, write the page and draw the picture."""
    records = releases()
    (DOCS / "benchmarks.md").write_text(page_of(records), encoding="utf-8")
    (DOCS / "benchmarks.svg").write_text(draw(records), encoding="utf-8")


def of(file: Path) -> dict[str, Any]:
    """Read a record."""
    record: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return record


if __name__ == "__main__":
    main()
