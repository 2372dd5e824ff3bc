"""Write the tables and figures of docs/public-programs.md from docs/public-programs.json.

Run ``python docs/write_public_programs.py``. ``benchmarks/public_programs.py`` writes the record.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from published import CLONES, LIBRARIES, PROGRAMS, WAYS, Program

from support.renew import DOCS, read, renewed, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Runs = Mapping[str, Any]

FIRST, *OTHERS = WAYS
FORWARD, *TRAINED = OTHERS

CLAIM = """\
Compared with float32, the final losses of these {programs} programs are {median} in the median
and {worst} at worst with the import, {of_stock} and {at_worst} on stock."""
ABOVE = "Above stock ended: {above}."
COMPUTED = "A forward pass in bfloat16 alone: {forward} at worst."
VERSIONS = "Versions: {versions}, on a CPU."


def page(record: Mapping[str, Any]) -> str:
    """Return the page with new figures."""
    programs = [(PROGRAMS[name], runs) for name, runs in record["programs"].items()]
    ends = {way: [excess(program, runs, way) for program, runs in programs] for way in TRAINED}
    forward = [excess(program, runs, FORWARD) for program, runs in programs if FORWARD in runs]
    stock, patched = ends.values()
    above = [f"`{of.name}`" for (of, _), a, b in zip(programs, stock, patched) if b > a]
    named = {"optax": record["optax"], "jax": record["jax"], **record["libraries"]}
    return renewed(
        read("public-programs.md"),
        [record],
        [
            rows(losses(program, runs) for program, runs in programs),
            rows(source(program, runs) for program, runs in programs),
        ],
        about_claim=CLAIM,
        about_above=ABOVE,
        about_forward=COMPUTED,
        about_versions=VERSIONS,
        programs=len(programs),
        median=percent(statistics.median(patched)),
        worst=percent(max(patched)),
        of_stock=percent(statistics.median(stock)),
        at_worst=percent(max(stock)),
        forward=percent(max(forward)),
        above=", ".join(above) or "none",
        versions=", ".join(f"{name} {version}" for name, version in named.items()),
    )


def losses(program: Program, runs: Runs) -> Iterator[str]:
    """Yield the cells of a program: its loss in float32, and how far the others end above it."""
    yield f"`{program.name}`"
    yield f"{statistics.mean(runs[FIRST]):.4g}"
    for way in OTHERS:
        yield percent(excess(program, runs, way)) if way in runs else ""
    yield f"{spread(runs[FIRST]):.1%}".replace("%", " %")


def source(program: Program, runs: Runs) -> tuple[object, ...]:
    """Return the cells about where a program is from, and what was measured."""
    repository, revision = CLONES[program.clone]
    link = f"https://github.com/{repository}/blob/{revision}/{program.file}"
    about = f"[{repository}]({link}), {program.about}"
    return (f"`{program.name}`", about, len(runs[FIRST]), program.last)


def excess(program: Program, runs: Runs, way: str) -> float:
    """Return the mean over seeds of how far a way ends above float32; infinity for NaN."""
    pairs = zip(runs[way], runs[FIRST])
    return statistics.mean(
        math.inf if loss is None else program.best * (loss - of_float32) / abs(of_float32)
        for loss, of_float32 in pairs
    )


def spread(found: list[float]) -> float:
    """Return how far apart the lowest and the highest loss are, over the mean."""
    return (max(found) - min(found)) / abs(statistics.mean(found))


def percent(share: float) -> str:
    """Format a share."""
    return "NaN" if math.isinf(share) else f"{round(100 * share, 2) + 0.0:+.2f} %"


def main() -> None:
    """Write the page."""
    record = json.loads((DOCS / "public-programs.json").read_text("utf-8"))
    assert record["libraries"].keys() == {*LIBRARIES}
    (DOCS / "public-programs.md").write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main()
