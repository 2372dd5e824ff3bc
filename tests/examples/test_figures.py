"""Each figure in the pages that people read first is that of a record, or of the table of releases.

If a test fails after a page was recorded again, write the new figure.
"""

from __future__ import annotations

import json
import re
import runpy
from typing import TYPE_CHECKING, Any

from optax_dtypefix.patches.releases import RELEASES, TESTED
from support.recorded import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


def text_of(page: str) -> str:
    """Return a page as one line."""
    return " ".join((ROOT / page).read_text("utf-8").split())


def benchmarks() -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text("utf-8")) for path in ROOT.glob("docs/benchmarks/[0-9]*.json")
    ]


def ratios(*, float16: bool) -> Iterator[float]:
    """Yield times over stock's, of steps with default patches and 50 million params."""
    for record in benchmarks():
        for found in record["steps"]:
            opt_in = found["patch"].startswith("float32_")
            if not opt_in and found["step"].endswith(" float16") == float16:
                time = found["times"]["5e7"]
                if "ratio" in time:
                    yield time["ratio"][1]


def test_the_readme_gives_the_times_of_the_benchmarks() -> None:
    of_all, (of_adam,) = [*ratios(float16=False)], ratios(float16=True)
    assert len(of_all) > 10
    assert (
        f"| time: {min(of_all):.1f} to {max(of_all):.1f} times stock's "
        f"(adam, float16: {of_adam:.1f})"
    ) in text_of("README.md")


def test_the_readme_gives_the_time_of_compiling() -> None:
    stock, patched = benchmarks()[-1]["scale"]["650 leaves, adamw, compile"]
    sentence = f"| adamw, 650 arrays: {patched / stock:.1f} times stock's time |"
    assert sentence in text_of("README.md")


def test_the_readme_gives_the_temporaries_of_adamw() -> None:
    """Of a step with donated params and state, in bytes a param."""
    record = json.loads((ROOT / "docs/benchmarks/memory.json").read_text("utf-8"))
    assert record["optax"] == TESTED[-1]
    (stock, brain), (also, half) = (
        record["different"][f"{dtype}, adamw"]["temporaries"] for dtype in ("bfloat16", "float16")
    )
    assert stock == also == 0
    more = "" if half == brain else f" (float16: {half:g})"
    sentence = f"temporaries: {brain:g} bytes a param{more}, stock none"
    assert sentence in text_of("README.md")


def test_the_readme_gives_the_time_of_the_import() -> None:
    records = benchmarks()
    first = max(record["imports"]["more"][1] for record in records)
    late = max(
        times["import and apply"][1] for record in records for times in record["late"].values()
    )
    sentence = r"up to ([\d.]+) s more, ([\d.]+) s after `import optax`"
    (bounds,) = re.findall(sentence, text_of("README.md"))
    # Bounds: the times of a slower processor were four times as long.
    assert first <= float(bounds[0])
    assert late <= float(bounds[1])


def test_the_pages_give_the_losses_of_the_long_runs() -> None:
    page = text_of("docs/long-runs.md")
    rows = dict(re.findall(r"\| ([^|]*) \| \S+ \| (\S+ \| \S+ \| \S+) \|", page))
    median, worst, kept = rows["default patches"].split(" | ")
    of_stock, at_worst, as_stock = rows["stock optax"].split(" | ")
    float32 = rows["float32 params"].split(" | ")[-1]
    loss, most, stock = (of.strip("+%") for of in (median, worst, of_stock))
    ((runs, unstable),) = re.findall(r"are of (\d+) runs: .*? but (.*?)\. These have", page)
    readme, home = text_of("README.md"), text_of("docs/index.md")
    assert (
        f"**Final loss: {loss} % above float32 in the median, {most} % at worst** of "
        f"[{runs} runs](docs/long-runs.md) (stock: {stock} %, {at_worst})"
    ) in readme
    assert (
        f"**Memory: {kept} bytes kept a param**, adamw in bfloat16 "
        f"(stock: {as_stock}, float32: {float32})"
    ) in readme
    assert (
        f"[{runs} runs](long-runs.md), the final loss is {loss} % above that of float32 in the "
        f"median, and {most} % at worst (stock: {stock} %, {at_worst})"
    ) in home
    *first, last = unstable.split(", ")
    assert f"our {runs} runs (not counting {', '.join(first)} and {last})" in readme
    with_copy = rows["`master_weights(tx)`"].split(" | ")[1].strip("+%")
    assert f"they end at most {with_copy} % above float32" in readme


def on_accelerators() -> dict[str, Any]:
    """Return the record of steps that were compiled, and not run."""
    record = json.loads((ROOT / "docs/benchmarks/accelerators.json").read_text("utf-8"))
    assert record["optax"] == TESTED[-1]
    assert record["compilers"].keys() == {"TPU v5e", "H100"}
    steps: dict[str, Any] = record["steps"]
    return steps


def test_the_readme_gives_the_bytes_that_a_step_moves_on_accelerators() -> None:
    moved = {
        name: found["moved"]
        for name, found in on_accelerators().items()
        if name.endswith(": adamw") and "float16" not in name
    }
    assert len(moved) == 8, moved  # One device, rows, columns, layers.
    stock, patched = (max(of) for of in zip(*moved.values()))
    readme = text_of("README.md")
    assert f"**Accelerator: {patched:g} bytes a param moved** by a step of adamw" in readme
    assert f"(docs/benchmarks.md#accelerators) (stock: {stock:g})" in readme
    assert f"| bytes moved: {patched:g} a param, stock {stock:g}, by adamw" in readme


MOVE_MORE = (
    # Two averages of a step are selected there by one number, which XLA fuses less.
    "TPU v5e: 4 devices, rows: apply_if_finite.adamw.",
    "TPU v5e: 1 device, float16: adamw",
    "H100: .*: dadapt_adamw",
)


def test_on_accelerators_other_steps_move_no_more_than_stock() -> None:
    for name, found in on_accelerators().items():
        stock, patched = found["moved"]
        if not re.fullmatch("|".join(MOVE_MORE), name):
            assert patched <= 1.02 * stock, name


def test_the_page_of_benchmarks_is_made_from_the_records() -> None:
    written = runpy.run_path(str(ROOT / "docs/write_benchmarks.py"))
    page = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    assert written["page_of"](written["releases"]()) == page


def test_the_pages_give_one_time_for_ci_and_one_for_the_tests() -> None:
    ((all_, tests),) = re.findall(
        r"`\.ci/run` takes up to (\d+) minutes, and `python -m pytest` about (\d+)\.",
        text_of("docs/evidence.md"),
    )
    assert f"| `.ci/run` | each fault; {all_} minutes |" in text_of("CONTRIBUTING.md")
    assert f"about {tests} minutes on two cores" in text_of("README.md")


def test_the_page_names_the_pairs_that_other_pythons_test() -> None:
    page = (ROOT / "docs" / "evidence.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (3\.\d+) \| (.*) \| passed \|$", page, re.MULTILINE))
    old = {
        python: f"{optax} and {row['jax'][0]}"
        for optax, row in RELEASES.items()
        for python in row.get("python", ())
    }
    assert rows.keys() == old.keys()
    assert {python: pairs.split("; ")[-1] for python, pairs in rows.items()} == old
