"""Each figure in the pages that people read first is that of a record, or of the table of releases.

If a test fails after a page was recorded again, write the new figure.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from optax_dtypefix.patches.releases import RELEASES, TESTED
from support.recorded import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

FOR_ALL = "takes {} to {} times as long as stock's"
FOR_FLOAT16 = "In float16 adam computes in float32, and takes {} times as long."


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
    assert FOR_ALL.format(f"{min(of_all):.1f}", f"{max(of_all):.1f}") in text_of("README.md")
    assert FOR_FLOAT16.format(f"{of_adam:.1f}") in text_of("README.md")


def test_the_readme_gives_the_time_of_compiling() -> None:
    stock, patched = benchmarks()[-1]["scale"]["650 leaves, adamw, compile"]
    sentence = f"With 650 bfloat16 arrays, adamw compiles {patched / stock:.1f} times as long."
    assert sentence in text_of("README.md")


def test_the_readme_gives_the_temporaries_of_adamw() -> None:
    """Of a step with donated params and state, in bytes a param."""
    record = json.loads((ROOT / "docs/benchmarks/memory.json").read_text("utf-8"))
    assert record["optax"] == TESTED[-1]
    stock, patched = zip(
        *(record["different"][f"{x}, adamw"]["temporaries"] for x in ("bfloat16", "float16"))
    )
    assert stock == (0, 0)
    beside = record["different"]["bfloat16 beside a second device, adamw"]["temporaries"]
    sentence = (
        f"adamw has temporaries of {max(patched):g} bytes a param in half precision, "
        f"{patched[0]:g} in bfloat16, {beside[1] - patched[0]:.0f} more beside other devices"
    )
    assert sentence in text_of("README.md")


def test_the_readme_gives_the_time_of_the_import() -> None:
    records = benchmarks()
    first = max(record["imports"]["more"][1] for record in records)
    late = max(
        times["import and apply"][1] for record in records for times in record["late"].values()
    )
    sentence = r"Import takes up to ([\d.]+) s longer, after `import optax` up to ([\d.]+) s\."
    (bounds,) = re.findall(sentence, text_of("README.md"))
    # Bounds: the times of a slower processor were four times as long.
    assert first <= float(bounds[0])
    assert late <= float(bounds[1])


def test_the_readme_gives_the_loss_of_master_weights() -> None:
    page = (ROOT / "docs" / "long-runs.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if "| `master_weights(tx)` |" in line)
    _, _, _, _, worst, *_ = (cell.strip() for cell in row.split("|"))
    (bound,) = re.findall(
        r"end at most ([\d.]+) % above the loss of float32\]\(docs/long-runs.md\)",
        text_of("README.md"),
    )
    # A bound: the record has 0.1 or 0.4, depending on the processor.
    assert float(worst.strip("+%")) <= float(bound)
    unstable = re.findall(r"\(#every-way\) but (.*)\.$", page, re.MULTILINE)[0].split(", ")
    assert f"not counting {', '.join(unstable[:-1])} and {unstable[-1]}." in text_of("README.md")


def test_the_readme_gives_the_loss_of_the_default_patches() -> None:
    page = (ROOT / "docs" / "long-runs.md").read_text("utf-8")
    rows = {
        words: figures
        for words, *figures in re.findall(r"^\| ([^|]*) \|" + 3 * r" (\S+) \|", page, re.MULTILINE)
    }
    (median,) = re.findall(r"\(stock: (\d+) % in the median\)", text_of("README.md"))
    ((runs, bound),) = re.findall(
        r"In (\d+) runs, 3,000 half-precision steps end at most ([\d.]+) % above",
        text_of("README.md"),
    )
    unstable = tuple(re.findall(r"\(#every-way\) but (.*)\.$", page, re.MULTILINE)[0].split(", "))
    names = re.findall(r"^\| (.*?) \|", page.partition("## Every way")[2], re.MULTILINE)[1:]
    assert int(runs) == len([name for name in names if f"`{name.split(',')[0]}`" not in unstable])
    assert rows["stock optax"][1] == f"+{median}%"
    assert float(rows["default patches"][2].strip("+%")) <= float(bound)


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
