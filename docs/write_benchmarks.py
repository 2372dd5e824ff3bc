"""Write docs/benchmarks.md and docs/benchmarks.svg from the records in docs/benchmarks/.

Run ``python docs/write_benchmarks.py``. ``python benchmarks`` writes the records.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.recorded import sentence
from support.svg import MARGIN, WIDTH, LogAxis, Svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FOLDER = Path(__file__).parent

HEAD = """\
# What it costs, and what it gains

{recorded_on}

This is the time of a compiled train step with 50 million params, relative to stock. `same`: the
program equals stock's, instruction by instruction.
{common}

The import takes {import_ms}, once. {same} of {steps} train steps cost nothing: they compile to
stock's program. Of the others, {fixed} raise an error on stock and run with the patches, {float64}
no longer compute in float64, and {traces} are traced less often.

![Time of a train step with optax_dtypefix, relative to stock](benchmarks.svg)

The picture shows the ten steps that differ most from stock at the largest size. Stock and patched
optax ran in turn, each in its own process. Each figure is a median. `~` marks figures whose
quartiles are more than 10 % apart. `nox -s benchmarks memory` repeats them.

| record | jax | Python | machine |
|---|---|---|---|"""

IMPORT = """
## Import

`import optax_dtypefix` imports neither jax nor optax. The patches load when optax is imported. The
table shows what they add to `import optax`, in CPU time. You do not pay for `wrapt` if your program
imports it anyway. `in instructions` counts wrapt, and wrapt with the patches; a negative time is
noise. The last two columns are of the statement `import optax_dtypefix` alone.

| optax | `import optax` | wrapt | wrapt and patches | in instructions | statement | modules |
|---|---|---|---|---|---|---|"""

LATE = """
If optax is already loaded, `import optax_dtypefix` patches it at once. `import and apply` includes
loading the patches. The last column is an `apply()` after `revert()`.

| optax | modules | import and apply | `revert()` | `apply()` |
|---|---|---|---|---|"""

MEMORY = """
## Memory

The table shows bytes a param in a compiled train step whose params and state are donated, with
optax {optax}: stock, then patched. The params are 16 arrays of one size. A step computes array by
array, so temporaries are larger if there are fewer: one row is of adamw with all params in one
array. *Peak in a step* is what the step needs at once: params, state,
gradients and temporaries. Traffic is what the program reads and writes, as XLA counts it. In
{equal} of {all} steps no figure differs from stock's; the table leaves them out. Where
stock's numbers are wrong, a patch computes in float32, and reads and writes widened arrays once
more.

| params | optimizer | temporaries | peak in a step | traffic |
|---|---|---|---|---|"""

SCALE = """
## Large trees

CPU seconds for bfloat16 params, stock and patched: 10,000 small leaves, the shapes of 80 layers of
a transformer, and 10 to 650 leaves of up to 60 shapes, whose step is compiled too. For each leaf,
`MultiSteps` has more operations than stock's: a guard against NaN, and before 0.2.8 sums in
float32.

| optax | tree and optimizer | `init` | tracing | compiling | `check` |
|---|---|---|---|---|---|"""

CALLS = """
## Calls

Once compiled, a patched function costs what its program costs. Tracing, and running without `jit`,
also run the Python code of the patches. This table shows that time.

| optax | call | stock | patched | difference |
|---|---|---|---|---|"""

STEPS = """
## Steps

The table shows the time of a train step relative to stock, for three numbers of params. It leaves
out the steps that compile to stock's program.

| optax | step | 1e4 params | 1e6 | 5e7 | patch |
|---|---|---|---|---|---|"""

SLOWER = """
Where a patched step takes more than 1.15 times as long as stock's:

- `adamw, float16`: stock's second moments are below the smallest float16 number, so the patch
  computes them in float32. A step with donated arrays reads and writes 30 bytes a param, and 20 on
  stock.
- The other steps of 10,000 params: how XLA splits loops over threads. On one core (version 1.1.0),
  they take 1.0 to 1.1 times as long as stock's.

This table counts the steps that run both on stock and with the patches. `a / b`: with the patches,
a step has fewer or more traces, and a smaller or larger state.

| optax | steps | same program | traces | state | with float64 arrays: stock, patched |
|---|---|---|---|---|---|"""

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
    records: list[dict[str, Any]], memory: dict[str, Any], devices: list[dict[str, Any]]
) -> Iterator[str]:
    """Yield the lines of the page."""
    recorded_on = sentence([*records, memory, *devices])
    first = "\n".join(common(records, devices))
    yield HEAD.format(recorded_on=recorded_on, common=first, **gains(records))
    for record in records:
        link = f"[optax {record['optax']}](benchmarks/{record['optax']}.json)"
        machine = f"{record['device']}, {record['machine']}"
        yield row(link, record["jax"], record["python"], machine)
    yield IMPORT
    for record in records:
        yield row(record["optax"], *imports(record["imports"]))
    yield LATE
    for record in records:
        for modules, found in record["late"].items():
            yield row(record["optax"], modules, *map(seconds, found.values()))
    yield from rows_of_memory(memory)
    yield SCALE
    for record in records:
        for cells in scale(record["scale"]):
            yield row(record["optax"], *cells)
    yield CALLS
    for record in records:
        for call, found in record["calls"].items():
            yield row(record["optax"], call, *map(seconds, found.values()))
    yield STEPS
    for record in records:
        yield from steps(record)
    yield SLOWER
    for record in records:
        yield row(record["optax"], *summary(record["counts"]))


def common(records: list[dict[str, Any]], devices: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of common steps: a column for each release, and for each device.

    Those of a device are measured without the model, with the number of params of its record.
    """
    releases = {f"optax {record['optax']}": ratios_of_release(record) for record in records}
    columns = {**releases, **{record["device"]: ratios_of_device(record) for record in devices}}
    yield from ("", row("step", *columns), row("---", *["---"] * len(columns)))
    for name in dict.fromkeys(name for found in releases.values() for name in found):
        yield row(name, *(found.get(name, "") for found in columns.values()))


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


def gains(records: list[dict[str, Any]]) -> dict[str, object]:
    """Return the figures of the first paragraph, of all releases together."""
    imports = [record["imports"]["more"][1] * 1e3 for record in records]
    least, most = min(imports), max(imports)
    counts = [record["counts"] for record in records]
    return {
        "import_ms": " to ".join(sorted({f"{least:.0f}", f"{most:.0f}"}, key=float)) + " ms longer",
        "steps": sum(count["steps"] for count in counts),
        "same": sum(count["same"] for count in counts),
        "fixed": sum(count["run_patched_only"] for count in counts),
        "float64": sum(count["float64"][0] - count["float64"][1] for count in counts),
        "traces": sum(count["traces"][0] for count in counts),
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


def rows_of_memory(record: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about the memory of compiled steps, but not of those that equal stock's."""
    equal = record["steps"] - len(record["different"])
    yield MEMORY.format(optax=record["optax"], equal=equal, all=record["steps"])
    for name, found in record["different"].items():
        setting, _, optimizer = name.partition(", ")
        yield row(setting, optimizer, *(f"{a:g} → {b:g}" for a, b in found.values()))


def scale(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each large tree and optimizer."""
    for name in dict.fromkeys(name.rpartition(", ")[0] for name in found):
        pairs = (found.get(f"{name}, {verb}") for verb in ("init", "trace", "compile", "check"))
        yield (name, *(f"{pair[0]:.3g} → {pair[1]:.3g}" if pair else "" for pair in pairs))


def steps(record: dict[str, Any]) -> Iterator[str]:
    """Yield a row for each step that differs from stock's: its time for each number of params."""
    for found in record["steps"]:
        times = [step(found["times"][size]) for size in RADII]
        if {*times} != {"same"}:
            patch = found["patch"]
            yield row(record["optax"], found["step"], *times, f"`{patch}`" if patch else "")


def step(time: Any) -> str:
    """Format the time of a step, relative to stock if stock does not raise."""
    if isinstance(time, str):
        return time
    if "seconds" in time:
        return seconds(time["seconds"])
    return f"{mark(time['ratio'])}{time['ratio'][1]:.2f}"


def summary(counts: dict[str, Any]) -> Iterator[str]:
    """Yield counts over the steps of one release that stock runs."""
    yield f"{counts['run']} of {counts['steps']}"
    yield str(counts["same"])
    for key in ("traces", "state_bytes_later"):
        yield " / ".join(map(str, counts[key]))
    yield ", ".join(map(str, counts["float64"]))


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


def row(*cells: object) -> str:
    """Format a line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


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
    for record, rows in zip(records[::-1], ratios[::-1]):
        counts = record["counts"]
        stack = f"optax {record['optax']}, jax {record['jax']}"
        svg.text(MARGIN, top + 34, f"{counts['same']} of {counts['steps']}", font_size=24)
        svg.text(MARGIN + 130, top + 20, stack, font_weight="bold")
        svg.text(MARGIN + 130, top + 36, "train steps compile to the same program")
        bottom = top + 56 + LINE * len(rows)
        AXIS.draw(svg, top + 48, bottom, (0.5, 0.75, 1, 1.5, 2, 2.5))
        for index, (name, by_size) in enumerate(rows):
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


def main() -> None:
    """Read the records, write the page and draw the picture."""
    records = [read(file) for file in FOLDER.glob("benchmarks/[0-9]*.json")]
    records.sort(key=lambda record: Version(record["optax"]))
    devices = [read(file) for file in sorted(FOLDER.glob("benchmarks/device-*.json"))]
    lines = page(records, read(FOLDER / "benchmarks" / "memory.json"), devices)
    (FOLDER / "benchmarks.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (FOLDER / "benchmarks.svg").write_text(draw(records), encoding="utf-8")


def read(file: Path) -> dict[str, Any]:
    """Read a record."""
    record: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return record


if __name__ == "__main__":
    main()
