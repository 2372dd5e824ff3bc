"""The output of the audit: verdicts, picture and errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from evidence.audit.picture import draw
from evidence.audit.record import count_by_name, count_verdicts, summarize
from evidence.audit.results import BROKEN, BY_DESIGN, KEPT, Row, narrowed, worse
from evidence.upstream import changes
from optax_dtypefix.patches.releases import TESTED
from support.processes import TESTS, run, stdout_of
from support.recorded import write

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

FEW = ("adam", "clip")
SVG = "{http://www.w3.org/2000/svg}"
WRITE_AUDIT = TESTS.parent / "docs" / "write_audit.py"


def audit(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "evidence.audit", *arguments, **variables)


@pytest.fixture(scope="module")
def few(tmp_path_factory: Any) -> tuple[Any, Path]:
    """The record and the picture of a few transformations."""
    done = audit("--json", "--only", *FEW)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    picture = tmp_path_factory.mktemp("audit") / "few.svg"
    picture.write_text(draw([drawn(record)]), encoding="utf-8")
    return record, picture


def drawn(audit: Any) -> dict[str, Any]:
    """Summarize an audit as one of the newest release, on which transformations are drawn."""
    return {**summarize({**audit, "optax_version": TESTED[-1]}), "optax": audit["optax_version"]}


def cells(record: Any, name: str, rate: str = "", inside: str = "") -> dict[str, str]:
    wanted = (name, rate, inside)
    found = [row for row in record["rows"] if (row["name"], row["rate"], row["inside"]) == wanted]
    assert len(found) == 1, wanted
    return dict(zip(record["regimes"], found[0]["cells"]))


def words_in(picture: Path) -> set[str | None]:
    """The words of an SVG file."""
    return {text.text for text in ElementTree.parse(picture).iter(f"{SVG}text")}


def test_every_verdict_occurs(few: Any) -> None:
    record, _ = few
    adam = cells(record, "adam", "float")
    assert (adam["f32"], adam["bf16"]) == (".", ".")  # Stock keeps the contract.
    assert (adam["integer leaf"], adam["strict"]) == ("+", "+")  # Fixed.
    assert adam["wider"] == "+"
    assert cells(record, "adam", "array")["bf16"] == "+"
    assert cells(record, "adam", "numpy")["f32 x64"] == "+"
    assert adam["nodes"] == adam["narrower"] == adam["int8 grads"] == "."
    assert cells(record, "adam", "float", "apply_if_finite")["wider"] == "+"
    assert cells(record, "clip")["complex"] in ".-"  # By design, where jax refuses it.
    assert record["still_broken"] == {}
    assert record["broken"]["stock"]["same_dtypes"] > 0
    assert record["broken"]["patched"] == {"all": 0, "same_dtypes": 0}


def test_an_update_is_narrowed_if_it_loses_values_of_stock() -> None:
    assert narrowed(["float32"], ["bfloat16"]) is not None
    assert narrowed(["float16"], ["bfloat16"]) is not None
    assert narrowed(["float64", "float32"], ["float64", "int8"]) is not None
    assert narrowed(["complex64"], ["float32"]) is not None
    assert narrowed(["float64", "bfloat16", "int8"], ["float64", "float32", "float32"]) is None
    assert narrowed([], ["float32"]) is None  # Stock raises.


def test_worse_than_stock_is_always_broken() -> None:
    drifts, raises, lost = "state: turns", "error: TypeError", "narrowed: an update is bfloat16"
    assert worse(None, drifts)
    assert worse(drifts, raises)
    assert worse(drifts, lost)
    assert not worse(drifts, drifts)
    assert not worse(raises, drifts)
    assert not worse(raises, raises)

    def verdict(**messages: str) -> str:
        found = {way: {"complex": said} if said else {} for way, said in messages.items()}
        return Row("0.2.8", "measure_with_ema", "", "", found).verdict("complex")

    assert verdict(stock="", patched="") == KEPT
    assert verdict(stock=drifts, patched=drifts) == BY_DESIGN
    assert verdict(stock="", patched=drifts) == BROKEN
    assert verdict(stock=drifts, patched=raises) == BROKEN


def test_a_narrowed_update_is_excused_on_old_releases_only() -> None:
    drifts, lost = "state: turns", "narrowed: an update is bfloat16"
    schedule_free = ("contrib.schedule_free", "float", "inject_hyperparams")

    def verdict(optax_version: str, regime: str, patched: str) -> str:
        said = {"stock": drifts, "patched": patched}
        found = {mode: {regime: message} for mode, message in said.items()}
        return Row(optax_version, *schedule_free, found).verdict(regime)

    assert verdict("0.2.7", "wider", lost) == BY_DESIGN
    assert verdict("0.2.8", "wider", lost) == BROKEN
    assert verdict("0.2.7", "bf16", lost) == BROKEN
    assert verdict("0.2.7", "wider", "error: TypeError") == BROKEN


def test_every_variant_is_measured(few: Any) -> None:
    record, _ = few
    variants = {(row["rate"], row["inside"]) for row in record["rows"] if row["name"] == "adam"}
    wrappers = ("MultiSteps", "apply_if_finite", "inject_hyperparams")
    rates = ("float", "schedule", "array", "numpy")
    assert variants == {(rate, "") for rate in rates} | {("float", inside) for inside in wrappers}
    assert record["cells"] == len(record["rows"]) * len(record["regimes"])


def test_the_picture_shows_fixes(few: Any) -> None:
    _, path = few
    words = words_in(path)
    assert {*FEW} <= words
    assert {"stock optax is right", "fixed"} <= words
    assert "still wrong" not in words


def test_the_picture_shows_broken_transformations() -> None:
    counts = count_verdicts([{"cells": ".x+-"}])
    svg = draw([{"optax": "0.1", "verdicts": counts, "transformations": {"contrib.adopt": counts}}])
    root = ElementTree.fromstring(svg)
    colors = [path.get("class") for path in root.iter(f"{SVG}path")]
    # In the totals, and for the one transformation. What is by design is not drawn.
    assert colors == ["gray", "blue", "red"] * 2
    assert "still wrong" in (text.text for text in root.iter(f"{SVG}text"))


def test_a_patch_that_is_off_shows_as_broken() -> None:
    done = audit("--only", "ema", OPTAX_DTYPEFIX_DISABLE="promotion")
    assert done.returncode == 1
    assert "Broken: ema, strict: error: TypePromotionError" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("ema ")]
    assert "x" in row.split()


def test_a_record_counts_verdicts_but_for_what_is_by_design() -> None:
    rows = [{"name": "adam", "cells": "..+-"}, {"name": "adam", "cells": "x"}]
    rows.append({"name": "clip", "cells": "--"})
    assert count_verdicts(rows) == {".": 2, "+": 1, "x": 1}
    assert count_by_name(rows) == {"adam": {".": 2, "+": 1, "x": 1}}


def test_a_record_has_what_the_audit_counts(few: Any) -> None:
    audit, _ = few
    record = summarize(audit)
    assert record["combinations"] == sum(record["verdicts"].values()) + record["by_design"]
    assert record["verdicts"]["+"] == audit["broken"]["stock"]["all"]
    assert set(record["reasons"]) == set(audit["by_design"].values())


def test_an_audit_of_an_untested_optax_is_compared_with_a_record(few: Any) -> None:
    audit, _ = few
    before = drawn(audit)
    assert list(changes.cells(audit, before)) == []
    adam = before["transformations"]["adam"]
    before["transformations"] = {
        "adam": {**adam, ".": adam["."] + 2, "+": adam["+"] - 2},
        "gone": adam,
    }
    broken, measured = adam["+"], sum(adam.values())
    assert sorted(changes.cells({**audit, "still_broken": {"adam, f32": "why"}}, before)) == [
        ("Broken with the shim", "adam, f32: why"),
        ("New transformation", "clip"),
        ("Stock breaks more", f"adam: {broken} of {measured} cells, were {broken - 2}"),
        ("Transformation that is gone", "gone"),
    ]


def test_write_audit_makes_a_table_and_a_picture(few: Any, tmp_path: Path) -> None:
    audit, _ = few
    older = summarize({**audit, "optax_version": "0.0.1", "rows": audit["rows"][:1]})
    paths = [tmp_path / "older.json", tmp_path / "newer.json"]
    for path, record in zip(paths, (older, drawn(audit))):
        write(record, path)
    stdout_of(run(WRITE_AUDIT, tmp_path, *paths))
    broken = audit["broken"]
    table = (tmp_path / "audit.md").read_text()
    assert f"| 0.0.1 | {audit['jax_version']} | {audit['cells']} |" in table
    assert f"| {broken['stock']['all']} ({broken['stock']['same_dtypes']}) |" in table
    assert {"0.0.1", audit["optax_version"], *FEW} <= words_in(tmp_path / "audit.svg")
