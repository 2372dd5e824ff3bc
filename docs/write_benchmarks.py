"""Writes docs/benchmarks.md and docs/benchmarks.svg, from what ``python benchmarks`` measured.

Run as ``python docs/write_benchmarks.py``.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FOLDER = Path(__file__).parent

HEAD = """\
# What it costs, and what it gains

`nox -s benchmarks page_of_benchmarks` measures this where it runs, and writes this page;
`docs/benchmarks/` has all figures. Stock and patched optax are measured in processes of their
own, in turn. A figure is a median; `~` says that its quartiles are more than 10 % apart.

![Time of a step with the shim over that of stock](benchmarks.svg)
"""

IMPORT = """
## Import

`import optax_dtypefix` itself imports neither jax nor optax; the rest happens when optax is
imported. What it adds is given twice, since Python collects garbage whenever so many objects were
made, which takes 30 ms with all of jax loaded, and it is chance whether that falls into the
import of the shim or comes soon after it.

| optax | `import optax` | shim adds | no collection | ratios | the statement | its modules |
|---|---|---|---|---|---|---|"""

LATE = """
With optax, and 1,000 to 4,000 modules in all, loaded before. The first time includes importing
the shim and its patches; the second one is `apply()` after `revert()`.

| optax | modules | import and apply | no collection | `revert()` | `apply()` |
|---|---|---|---|---|---|"""

CALLS = """
## Calls

A function that is compiled costs nothing more than the program it was compiled to. While it is
traced, or run without `jit`, each patched function adds Python of its own.

| optax | call | stock | with the shim | more |
|---|---|---|---|---|"""

STEPS = """
## Steps

The time of a train step over that of stock, at three numbers of params, and beside what one would
do without the shim: `cast back` casts the whole state to its first dtypes after each step,
`upgraded` is stock optax {newest} with its jax. `same` is a program that is that of stock,
instruction by instruction, and so costs the same. Where stock raises, the time itself is given.
`dies` is a process that ends in XLA: with jaxlib 0.4.31 on the CPU float32 dot products of this
size do (`could not reshape a memory descriptor`), on stock as with the shim. Traces are those of
the first three steps; memory is that of arguments, results and temporaries of the compiled step."""

COLUMNS = (
    *("case", "patch", "regime"),
    *("1e4 params", "1e6", "5e7", "cast back, 1e6", "upgraded, 1e6"),
    *("traces", "instructions", "float64 arrays", "state, bytes a param", "memory, bytes a param"),
)

COLORS = {
    "float32": "#00798c",
    "bfloat16": "#d1495b",
    "float16": "#edae49",
    "float32 x64": "#555555",
}
MARKERS = {10_000: "o", 1_000_000: "s", 50_000_000: "^"}


def page(records: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of the page."""
    yield HEAD
    for record in records:
        stack = f"optax {record['optax']}, jax {record['jax']}, Python {record['python']}"
        yield f"- {stack}: {record['device']}, {record['machine']}"
    yield IMPORT
    for record in records:
        yield row(record["optax"], *imports(record["imports"]))
    yield LATE
    for record in records:
        for modules in (1000, 2000, 4000):
            yield row(record["optax"], modules, *late(record["imports"], modules))
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


def imports(found: dict[str, Any]) -> Iterator[str]:
    """Import time: stock, what comes on top, with and without garbage, and the statement."""
    all_of_it, bare = found["import optax"], found["import optax, no garbage collected"]
    yield seconds(all_of_it["stock_s"])
    yield seconds(all_of_it["more_s"])
    yield seconds(bare["more_s"])
    yield f"{all_of_it['ratio']['median']:.2f}, {bare['ratio']['median']:.2f}"
    yield seconds(all_of_it["the statement alone_s"])
    yield str(all_of_it["modules before optax"])


def late(found: dict[str, Any], modules: int) -> Iterator[str]:
    """Applying and reverting with so many modules loaded."""
    all_of_it, bare = (
        found[f"{modules} modules loaded{words}"] for words in ("", ", no garbage collected")
    )
    yield seconds(all_of_it["import and apply"])
    yield seconds(bare["import and apply"])
    yield seconds(all_of_it["revert"])
    yield seconds(all_of_it["apply"])


def by_case(measured: Iterable[dict[str, Any]]) -> Iterator[dict[int, dict[str, Any]]]:
    """What was measured of one case in one regime, by size."""
    for _, group in itertools.groupby(measured, lambda found: (found["case"], found["regime"])):
        yield {found["size"]: found for found in group}


def steps(sizes: dict[int, dict[str, Any]]) -> Iterator[str]:
    """One row: times at all sizes, and counts at that in the middle."""
    middle = sizes[1_000_000]
    yield middle["case"]
    yield f"`{middle['patch']}`" if middle["patch"] else ""
    yield middle["regime"]
    for size in MARKERS:
        yield step(sizes[size], "patched")
    yield step(middle, "cast back")
    yield step(middle, "upgraded")
    yield change(middle, lambda about: about["traces"])
    yield change(middle, lambda about: about["instructions"])
    yield change(middle, lambda about: "yes" if about["float64"] else "no")
    yield change(middle, lambda about: f"{about['state_bytes_later'] / middle['size']:.3g}")
    memory = "memory_bytes"  # 0 where that jaxlib does not tell.
    yield change(middle, lambda about: about[memory] and f"{about[memory] / middle['size']:.3g}")


def step(found: dict[str, Any], way: str) -> str:
    """Time of a step in one way, over that of stock if there is one."""
    about = found["ways"].get(way)
    if about is None:
        return ""
    if "raises" in about:
        return what_comes_instead(about)
    if about["program"] == found["ways"]["stock"].get("program"):
        return "same"
    if "raises" in found["ways"]["stock"]:
        return seconds(found["step_s"][way])
    ratio = found["ratio"][way]
    return f"{'~' if ratio['noisy'] else ''}{ratio['median']:.2f}"


def what_comes_instead(about: dict[str, Any]) -> str:
    """What a step does that raises, or of which the whole process dies in JAX."""
    return "dies" if about["raises"] == "the process died" else "raises"


def change(found: dict[str, Any], what: Any) -> str:
    """A property of the step, of stock and of patched optax if they differ."""
    values = [
        what_comes_instead(about) if "raises" in about else str(what(about) or "not told")
        for about in (found["ways"]["stock"], found["ways"]["patched"])
    ]
    return " → ".join(dict.fromkeys(values))


def summary(measured: list[dict[str, Any]]) -> Iterator[str]:
    """Counts over one release."""
    both = [
        (found["ways"]["stock"], found["ways"]["patched"])
        for found in measured
        if not any("raises" in found["ways"][way] for way in ("stock", "patched"))
    ]
    raising = sum("raises" in found["ways"]["stock"] for found in measured)
    same = sum(stock["program"] == patched["program"] for stock, patched in both)
    yield f"Of {len(measured)} steps stock raises in {raising}, or dies. Of the other {len(both)}:"
    yield ""
    yield f"- {same} are compiled to the same program, with the shim and without;"
    fewer, smaller = (
        [sum(sign * (stock[key] - patched[key]) > 0 for stock, patched in both) for sign in (1, -1)]
        for key in ("traces", "state_bytes_later")
    )
    yield f"- {fewer[0]} are traced less often with the shim, {fewer[1]} more often;"
    yield f"- in {smaller[0]} the state is smaller with the shim, in {smaller[1]} larger;"
    inside = [sum(way["float64"] for way in ways) for ways in zip(*both)]
    yield f"- {inside[0]} have float64 arrays inside on stock, {inside[1]} with the shim."


def seconds(found: dict[str, Any]) -> str:
    """A time with its unit."""
    value = found["median"]
    unit, scale = next(
        (pair for pair in (("s", 1.0), ("ms", 1e3)) if abs(value) * pair[1] >= 1), ("µs", 1e6)
    )
    return f"{'~' if found['noisy'] else ''}{value * scale:.3g} {unit}"


def row(*cells: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def draw(records: list[dict[str, Any]]) -> None:
    """The picture: for each case the time over that of stock, where programs differ."""
    figure, every = plt.subplots(
        1, len(records), figsize=(12, 5), sharey=True, layout="constrained"
    )
    names = list(dict.fromkeys(found["case"] for record in records for found in record["steps"]))
    for axes, record in zip(every, records):
        axes.axvline(1, color="black", linewidth=0.8)
        for found in record["steps"]:
            ratio = found["ratio"].get("patched")
            if ratio is not None:
                low, high = ratio["quartiles"]
                place = len(names) - names.index(found["case"])
                place += 0.18 * (1.5 - list(COLORS).index(found["regime"]))
                color = COLORS[found["regime"]]
                axes.plot([low, high], [place, place], color=color, linewidth=1)
                axes.plot(ratio["median"], place, MARKERS[found["size"]], color=color, markersize=4)
        axes.set_xscale("log")
        ticks = (0.25, 0.5, 1, 2, 4)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_title(f"optax {record['optax']}, jax {record['jax']}", fontsize=10)
        axes.grid(axis="y", linewidth=0.3)
    every[0].set_yticks(range(len(names), 0, -1), names, fontsize=8)
    key = [plt.Line2D([], [], color=color, label=regime) for regime, color in COLORS.items()]
    key += [
        plt.Line2D([], [], color="gray", marker=marker, linestyle="", label=f"{size:.0e} params")
        for size, marker in MARKERS.items()
    ]
    figure.legend(handles=key, loc="outside lower center", ncols=len(key), fontsize=8)
    figure.suptitle(
        "Time of a train step with the shim over that of stock, median and quartiles\n"
        "(left is faster; programs that are the same are not drawn)",
        fontsize=11,
    )
    figure.savefig(FOLDER / "benchmarks.svg", metadata={"Date": None})


def main() -> None:
    """Reads the records, writes the page, draws the picture."""
    records = [json.loads(file.read_text("utf-8")) for file in FOLDER.glob("benchmarks/*.json")]
    records.sort(key=lambda record: Version(record["optax"]))
    (FOLDER / "benchmarks.md").write_text("\n".join(page(records)) + "\n", encoding="utf-8")
    draw(records)


if __name__ == "__main__":
    main()
