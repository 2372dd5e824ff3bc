"""Write docs/benchmarks.md and docs/benchmarks.svg from the records in docs/benchmarks/.

Run ``python docs/write_benchmarks.py``. ``python benchmarks`` writes the records.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.recorded import sentence
from support.svg import Svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FOLDER = Path(__file__).parent

HEAD = """\
# What it costs, and what it gains

{recorded_on}

The import takes {import_ms}, once. {same} of {steps} train steps cost nothing: they compile to
stock's program. Of the others, {fixed} raise an error on stock and run with the patches, {float64}
no longer compute in float64, and {traces} are traced less often.

![Time of a train step with optax_dtypefix, relative to stock](benchmarks.svg)

Stock and patched optax ran in turn, each in its own process. Each figure is a median. `~` marks
figures whose quartiles are more than 10 % apart. `docs/benchmarks/` has all measurements, and
`nox -s benchmarks page_of_benchmarks` repeats them on your machine.

Measured on:
"""

IMPORT = """
## Import

`import optax_dtypefix` imports neither jax nor optax. The patches load when optax is imported. The
table shows what they add to `import optax`, in CPU time, with bytecode and without garbage
collection. `wrapt` alone is the part that you do not pay if your program imports wrapt anyway: from
2.2 on, wrapt imports asyncio. The rest is some 60 small modules to load, and some 140 functions to
wrap. The last two columns are of the statement `import optax_dtypefix` alone.

| optax | `import optax` | wrapt | wrapt and patches | in instructions | statement | modules |
|---|---|---|---|---|---|---|"""

LATE = """
If optax is already loaded, `import optax_dtypefix` patches it at once. This table shows the time
with 1,000 to 4,000 modules loaded. `import and apply` includes loading the patches. The last column
is an `apply()` after `revert()`.

| optax | modules | import and apply | `revert()` | `apply()` |
|---|---|---|---|---|"""

MEMORY = """
## Memory

The tables show bytes a param in a compiled train step whose params and state are donated: stock,
then patched. Traffic is what the program reads and writes, as XLA counts it. Not shown are the
steps where both figures equal those of stock: {equal} of {all}. Where stock's numbers are wrong, a
patch computes in float32, and reads and writes what it widens once more. On a CPU, XLA writes each
float32 tree that two results need; a GPU fuses more.

| optax | params | optimizer | temporaries | traffic |
|---|---|---|---|---|"""

SCALE = """
## Large trees

CPU seconds for bfloat16 params, stock and patched: 10,000 small leaves, and the shapes of 80 layers
of a transformer. Both processes run at the same time. No array is allocated. For each leaf,
`MultiSteps` has more operations than stock's: a guard against NaN, and before 0.2.8 sums in
float32.

| optax | tree and optimizer | `init` | tracing | `check` |
|---|---|---|---|---|"""

CALLS = """
## Calls

Once compiled, a patched function costs what its program costs. Tracing, and running without `jit`,
also run the Python code of the patches. This table shows that time.

| optax | call | stock | patched | difference |
|---|---|---|---|---|"""

STEPS = """
## Steps

The tables show the time of a train step relative to stock, for three numbers of params. Two more
columns show what you could do without the patches: `cast back` casts the whole state to its first
dtypes after each step; `upgraded` is stock optax {newest} with its jax.

- `same`: the program equals stock's, instruction by instruction.
- A time instead of a ratio: stock raises.
- `dies`: XLA ends the process, on stock and patched alike. jaxlib 0.4.31 does so on the CPU for
  float32 dot products of this size (`could not reshape a memory descriptor`).
- Traces: how often the first three steps are traced.
- Memory: arguments, results and temporaries of the compiled step. `unknown` where jaxlib reports
  none.
- `a → b`: stock, then patched.

Where a patched step takes more than 1.15 times as long as stock's:

- `adam, float16`: stock's second moments are below the smallest float16 number, so the patch
  computes them in float32. Two results need the new moments, the state and the update, and XLA on
  the CPU then writes them in float32: 30 bytes a param of traffic instead of 20.
- The other steps of 10,000 params, and `prodigy` on 0.2.3 in 64-bit mode: how XLA splits loops over
  threads. In a process that may use one core, these steps take 0.9 to 1.1 times as long as stock's,
  and `adam, float16` 1.2 to 1.3 times.
- `adam, float32 moments`: the moments are twice as wide, as you asked. A step reads and writes 26
  bytes a param instead of 20."""

COLUMNS = (
    *("case", "patch", "regime"),
    *("1e4 params", "1e6", "5e7", "cast back, 1e6", "upgraded, 1e6"),
    *("traces", "instructions", "float64 arrays", "state, bytes a param", "memory, bytes a param"),
)

RADII = {10_000: 2.2, 1_000_000: 3.4, 50_000_000: 4.8}
"""Of the circle for each number of params."""
TITLE = "Time of a train step with optax_dtypefix, relative to stock"
WIDTH, MARGIN, LINE = 830, 12, 13


def page(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield HEAD.format(recorded_on=sentence(records), **gains(records))
    for record in records:
        stack = f"optax {record['optax']}, jax {record['jax']}, Python {record['python']}"
        yield f"- {stack}: {record['device']}, {record['machine']}"
    yield IMPORT
    for record in records:
        yield row(record["optax"], *imports(record["imports"]))
    yield LATE
    for record in records:
        for modules, found in record["imports"]["late"].items():
            verbs = ("import and apply", "revert", "apply")
            yield row(record["optax"], modules, *(seconds(found[verb]) for verb in verbs))
    counted = [found for record in records for found in memory(record)]
    different = [cells for cells, differs in counted if differs]
    yield MEMORY.format(equal=len(counted) - len(different), all=len(counted))
    for cells in different:
        yield row(*cells)
    yield SCALE
    for record in records:
        for cells in scale(record["scale"]):
            yield row(record["optax"], *cells)
    yield CALLS
    for record in records:
        for call, found in record["calls"].items():
            times = (found[f"{key}_s"] for key in ("stock", "patched", "more"))
            yield row(record["optax"], call, *map(seconds, times))
    yield STEPS.format(newest=records[-1]["optax"])
    for record in records:
        yield f"\n### optax {record['optax']}, jax {record['jax']}\n"
        yield row(*COLUMNS)
        yield row(*("---" for _ in COLUMNS))
        for found in by_case(record["steps"]):
            yield row(*steps(found))
        yield ""
        yield from summary(record["steps"])


def gains(records: list[dict[str, Any]]) -> dict[str, object]:
    """Return the figures of the first paragraph, of all releases together."""
    imports = [record["imports"]["more_s"]["median"] * 1e3 for record in records]
    measured = [found["ways"] for record in records for found in record["steps"]]
    both = [
        (ways["stock"], ways["patched"])
        for ways in measured
        if not any("raises" in ways[way] for way in ("stock", "patched"))
    ]
    return {
        "import_ms": f"{min(imports):.0f} to {max(imports):.0f} ms",
        "steps": len(measured),
        "same": sum(stock["program"] == patched["program"] for stock, patched in both),
        "fixed": sum(
            "raises" in ways["stock"] and "raises" not in ways["patched"] for ways in measured
        ),
        "float64": sum(stock["float64"] and not patched["float64"] for stock, patched in both),
        "traces": sum(stock["traces"] > patched["traces"] for stock, patched in both),
    }


def imports(found: dict[str, Any]) -> Iterator[str]:
    """Yield import times: stock, what wrapt and the patches add, and the statement alone."""
    yield seconds(found["stock_s"])
    for key in ("wrapt more_s", "more_s"):
        more = found[key]["median"] / found["stock_s"]["median"]
        yield f"{seconds(found[key])}, {more:.1%}"
    counts = list(found["instructions"].values())
    yield " and ".join(f"{count / counts[0] - 1:.1%}" for count in counts[1:]) if counts[0] else ""
    yield seconds(found["the statement alone_s"])
    yield str(found["modules before optax"])


def memory(record: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the cells of each compiled step, and whether the counts differ from stock's."""
    regimes = record["memory"].values()
    reported = any(step["temporaries"] for ways in regimes for step in ways["stock"].values())
    for regime, ways in record["memory"].items():
        for name, stock in ways["stock"].items():
            patched = ways["patched"][name]
            pairs = [(stock[key], patched[key]) for key in ("temporaries", "traffic")]
            cells = [f"{before:g} → {after:g}" for before, after in pairs]
            if not reported:  # By this jaxlib.
                cells[0] = "unknown"
            differs = any(before != after for before, after in pairs)
            yield (record["optax"], regime, name, *cells), differs


def scale(found: dict[str, dict[str, float]]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each large tree and optimizer."""
    names = dict.fromkeys(name.rpartition(", ")[0] for name in found["stock"])
    for name in names:
        keys = [f"{name}, {verb}" for verb in ("init", "trace", "check")]
        yield (name, *(f"{found['stock'][k]:.3g} → {found['patched'][k]:.3g}" for k in keys))


def by_case(measured: Iterable[dict[str, Any]]) -> Iterator[dict[int, dict[str, Any]]]:
    """Yield the measurements of each case in each regime, by size."""
    for _, group in itertools.groupby(measured, lambda found: (found["case"], found["regime"])):
        yield {found["size"]: found for found in group}


def steps(sizes: dict[int, dict[str, Any]]) -> Iterator[str]:
    """Yield one row: times at all sizes, and counts at the middle size."""
    middle = sizes[1_000_000]
    yield middle["case"]
    yield f"`{middle['patch']}`" if middle["patch"] else ""
    yield middle["regime"]
    for size in RADII:
        yield step(sizes[size], "patched")
    yield step(middle, "cast back")
    yield step(middle, "upgraded")
    yield change(middle, lambda about: about["traces"])
    yield change(middle, lambda about: about["instructions"])
    yield change(middle, lambda about: "yes" if about["float64"] else "no")
    yield change(middle, lambda about: f"{about['state_bytes_later'] / middle['size']:.3g}")
    memory = "memory_bytes"  # 0 where that jaxlib does not report it.
    yield change(middle, lambda about: about[memory] and f"{about[memory] / middle['size']:.3g}")


def step(found: dict[str, Any], way: str) -> str:
    """Return the time of a step, relative to stock if stock does not raise."""
    about = found["ways"].get(way)
    if about is None:
        return ""
    if "raises" in about:
        return failure(about)
    if about["program"] == found["ways"]["stock"].get("program"):
        return "same"
    if "raises" in found["ways"]["stock"]:
        return seconds(found["step_s"][way])
    ratio = found["ratio"][way]
    return f"{'~' if ratio['noisy'] else ''}{ratio['median']:.2f}"


def failure(about: dict[str, Any]) -> str:
    """Name the failure of a step: an exception, or the end of the process in XLA."""
    return "dies" if about["raises"] == "the process died" else "raises"


def change(found: dict[str, Any], what: Any) -> str:
    """Return a property of the step: one value, or stock's and the patched one's."""
    values = [
        failure(about) if "raises" in about else str(what(about) or "unknown")
        for about in (found["ways"]["stock"], found["ways"]["patched"])
    ]
    return " → ".join(dict.fromkeys(values))


def summary(measured: list[dict[str, Any]]) -> Iterator[str]:
    """Yield counts over one release."""
    both = [
        (found["ways"]["stock"], found["ways"]["patched"])
        for found in measured
        if not any("raises" in found["ways"][way] for way in ("stock", "patched"))
    ]
    raising = sum("raises" in found["ways"]["stock"] for found in measured)
    same = sum(stock["program"] == patched["program"] for stock, patched in both)
    yield f"Stock raises or dies in {raising} of {len(measured)} steps. Of the other {len(both)}:"
    yield ""
    yield f"- {same} compile to the same program with and without the patches;"
    fewer, smaller = (
        [sum(sign * (stock[key] - patched[key]) > 0 for stock, patched in both) for sign in (1, -1)]
        for key in ("traces", "state_bytes_later")
    )
    yield f"- {fewer[0]} are traced less often with the patches, {fewer[1]} more often;"
    yield f"- {smaller[0]} have a smaller state with the patches, {smaller[1]} a larger one;"
    inside = [sum(way["float64"] for way in ways) for ways in zip(*both)]
    yield f"- {inside[0]} contain float64 arrays on stock, {inside[1]} with the patches."


def seconds(found: dict[str, Any]) -> str:
    """Format a time with its unit."""
    value = found["median"]
    unit, scale = next(
        (pair for pair in (("s", 1.0), ("ms", 1e3)) if abs(value) * pair[1] >= 1), ("µs", 1e6)
    )
    return f"{'~' if found['noisy'] else ''}{value * scale:.3g} {unit}"


def row(*cells: object) -> str:
    """Format a line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def draw(records: list[dict[str, Any]]) -> str:
    """Draw the time of each step over that of stock where programs differ, newest release first."""
    ratios = [rows_of(record["steps"]) for record in records]
    high = 70 + sum(64 + LINE * len(rows) for rows in ratios)
    svg = Svg(WIDTH, high, TITLE)
    svg.text(MARGIN, 24, TITLE, font_size=15, font_weight="bold")
    draw_legend(svg)
    top = 84
    for record, rows in zip(records[::-1], ratios[::-1]):
        stack = f"optax {record['optax']}, jax {record['jax']}"
        same = sum(step(found, "patched") == "same" for found in record["steps"])
        bottom = top + 24 + LINE * len(rows)
        svg.text(MARGIN, top, stack, font_size=13, font_weight="bold")
        words = f"not shown: {same} steps that compile to the same program as on stock"
        svg.text(MARGIN + 190, top, words, "muted")
        for tick in (0.25, 0.5, 1, 2, 4, 8):
            svg.line(
                [(place(tick), top + 12), (place(tick), bottom)], "muted" if tick == 1 else "rule"
            )
            svg.text(place(tick), bottom + 13, f"{tick:g}x", "muted", text_anchor="middle")
        for index, (name, by_size) in enumerate(rows):
            draw_row(svg, top + 22 + LINE * index, name, by_size)
        top = bottom + 40
    return str(svg)


def rows_of(measured: Iterable[dict[str, Any]]) -> list[tuple[str, dict[int, Any]]]:
    """Return names and ratios by size where programs differ, the fastest large step first."""
    rows = []
    for sizes in by_case(measured):
        ratios = {
            size: found["ratio"]["patched"]
            for size, found in sizes.items()
            if "patched" in found["ratio"]
        }
        one = sizes[1_000_000]
        case, regime = one["case"], one["regime"]
        if ratios:
            rows.append((case if regime in case else f"{case}, {regime}", ratios))
    return sorted(rows, key=lambda row: row[1][max(row[1])]["median"])


def draw_row(svg: Svg, y: float, name: str, by_size: dict[int, Any]) -> None:
    """Draw the three sizes of one step, and its name beside them."""
    for size, ratio in sorted(by_size.items(), reverse=True):
        low, high = ratio["quartiles"]
        color = "blue" if high < 1 else "red" if low > 1 else "silver"
        svg.line([(place(low), y), (place(high), y)], color)
        svg.circle(place(ratio["median"]), y, RADII[size], color)
    end = max(place(ratio["quartiles"][1]) for ratio in by_size.values())
    svg.text(max(end, place(1)) + 10, y + 4, name, font_size=10)


def draw_legend(svg: Svg) -> None:
    """Explain colors and sizes."""
    x: float = MARGIN
    for color, radius, words in (
        ("blue", 4, "faster than stock"),
        ("silver", 4, "no clear difference"),
        ("red", 4, "slower"),
        ("ink", RADII[10_000], "10 thousand params"),
        ("ink", RADII[1_000_000], "1 million"),
        ("ink", RADII[50_000_000], "50 million (lines: quartiles)"),
    ):
        svg.circle(x + 5, 44, radius, color)
        svg.text(x + 15, 48, words)
        x += 34 + 6.4 * len(words)


def place(ratio: float) -> float:
    """Return where a ratio is on the logarithmic axis."""
    return 160 + 105 * math.log2(ratio / 0.5)


def main() -> None:
    """Read the records, write the page and draw the picture."""
    records = [json.loads(file.read_text("utf-8")) for file in FOLDER.glob("benchmarks/*.json")]
    records.sort(key=lambda record: Version(record["optax"]))
    (FOLDER / "benchmarks.md").write_text("\n".join(page(records)) + "\n", encoding="utf-8")
    (FOLDER / "benchmarks.svg").write_text(draw(records), encoding="utf-8")


if __name__ == "__main__":
    main()
