"""The audit of the installed optax: nothing is broken, and what was right has not changed.

Two processes, stock and patched, trace every cell. Where stock keeps C1 to C3, the patched program
has to be identical, unless ``functions.json`` names a problem there: of the transformation, of its
wrapper or of the transformation that it is given. ``DIFFERENT`` lists the other exceptions. Cells
in ``MultiSteps`` are never compared: ``zero_nans`` changes them in every dtype.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import optax
import pytest
from packaging.version import Version

from evidence.audit.cases import public_transformations, takes_another
from evidence.audit.known_exceptions import reason_for, reason_to_differ, reason_to_narrow
from evidence.audit.regimes import REGIMES
from evidence.audit.results import narrowed, worse
from optax_dtypefix._diagnosis.scan.functions import faults_of
from optax_dtypefix._engine.release import Release
from support.processes import PATCHED, STOCK, finish, start, stdout_of

SAME_DTYPES = {regime.name for regime in REGIMES if regime.same_dtypes}
RELEASE = Release(optax.__version__, tested=True)

PROBLEMS = {
    "f32": (),
    "bf16": ("bfloat16",),
    "f16": ("float16",),
    "mixed": ("bfloat16", "mixed dtypes"),
    "integer leaf": ("integers",),
    "integer matrix": ("integers",),
    "complex": ("complex numbers",),
    "all complex": ("complex numbers",),
    "f32 x64": ("64-bit mode",),
    "bf16 x64": ("bfloat16", "64-bit mode"),
    "f64 x64": ("64-bit mode",),
    "strict": (),  # Stock raises where it has a problem.
    "nodes": (),
    "wider": ("bfloat16", "gradients wider than params"),
    "narrower": ("bfloat16",),
    "f16 grads": ("float16",),
    "int8 grads": ("integers",),
    "f64 grads": ("64-bit mode", "gradients wider than params"),
}
"""For each regime, the problems of ``functions.json`` that may change a program there."""

Cell = tuple[str, str, str, str]
"""Name, variant of the learning rate, wrapper, regime."""


def is_named(cell: Cell) -> bool:
    """Whether ``functions.json`` has a problem of this regime for a function of the cell."""
    name, _, inside, regime = cell
    problems = {"any dtype", *PROBLEMS[regime]}
    return any(
        problems.intersection(kinds)
        for function in filter(None, (name, inside, given_to(name)))
        for kinds in faults_of(f"optax.{function}", RELEASE).values()
    )


@functools.cache
def given_to(name: str) -> str:
    """Name what the audit gives to a transformation that needs another one.

    Some are given sgd or trace in place of adam, which has the problems of both, too.
    """
    return "adam" if takes_another(public_transformations()[name]) else ""


def both(folder: Path, *more: str) -> tuple[dict[Cell, Any], dict[Cell, Any]]:
    """Run the audit on stock and on patched optax, in two processes at once."""
    paths = [folder / "stock.jsonl", folder / "patched.jsonl"]
    both = [
        start("-m", "evidence.audit.cells", path, *more, **way)
        for path, way in zip(paths, (STOCK, PATCHED))
    ]
    for done in finish(both):
        stdout_of(done)
    found = []
    for path in paths:
        with path.open(encoding="utf-8") as file:
            found.append({tuple(entry["cell"]): entry for entry in map(json.loads, file)})
    assert found[0].keys() == found[1].keys()
    return found[0], found[1]


@pytest.fixture(scope="session")
def cells(tmp_path_factory: Any) -> tuple[dict[Cell, Any], dict[Cell, Any]]:
    return both(tmp_path_factory.mktemp("cells"))


def test_nothing_is_broken_if_params_and_gradients_have_the_same_dtypes(cells: Any) -> None:
    stock, patched = cells
    assert sum(bool(entry["broken"]) for entry in stock.values()) > 1000
    broken = {
        cell: entry["broken"]
        for cell, entry in patched.items()
        if entry["broken"]
        and cell[3] in SAME_DTYPES
        and reason_for(*cell, optax.__version__) is None
    }
    assert broken == {}


def test_nothing_is_worse_than_stock(cells: Any) -> None:
    """If patched optax is worse than stock, only ``NARROWED`` excuses it."""
    stock, patched = cells
    found = {}
    for cell, entry in patched.items():
        kept = stock[cell]
        lost = narrowed(kept["updates"], entry["updates"])
        if reason_to_narrow(*cell, optax.__version__):
            lost = None
        said = [*filter(None, [lost]), *entry["broken"]]
        if said and worse(next(iter(kept["broken"]), None), said[0]):
            found[cell] = said[0]
    assert found == {}


def test_dtypes_of_stock_updates(cells: Any) -> None:
    """Stock returns float32 updates for narrower gradients, and floats for integers."""
    stock, _ = cells
    updates = {cell: entry["updates"] for cell, entry in stock.items()}
    assert updates["adam", "float", "", "narrower"] == ["float32", "float32"]
    assert updates["sgd", "float", "", "int8 grads"] == ["float32", "float32"]
    assert updates["adam", "float", "", "wider"] == ["float32", "float32"]
    assert updates["adam", "float", "", "f64 x64"] == ["float64", "float64"]


@pytest.mark.skipif(Version(optax.__version__) < Version("0.2.8"), reason="0.2.8 fixed this")
def test_stock_is_as_narrow_where_old_releases_may_be_narrowed(cells: Any) -> None:
    stock, _ = cells
    excused = [cell for cell in stock if reason_to_narrow(*cell, "0.2.7")]
    assert len(excused) == 8
    for cell in excused:
        narrow = "bfloat16" if cell[3] == "wider" else "float32"
        assert set(stock[cell]["updates"]) == {narrow}, cell


def test_programs_differ_only_where_the_table_of_functions_says_so(
    cells: Any, tmp_path: Path
) -> None:
    stock, patched = cells
    kept = [cell for cell in stock if not (stock[cell]["broken"] or patched[cell]["broken"])]
    unnamed = [cell for cell in kept if not is_named(cell)]
    assert len(unnamed) > 1000
    other = [cell for cell in unnamed if stock[cell]["program"] != patched[cell]["program"]]
    # What jax gives to XLA may differ by a cast that XLA removes.
    wanted = tmp_path / "wanted.json"
    wanted.write_text(json.dumps(other))
    compiled = both(tmp_path, str(wanted))
    programs = {cell: [way[cell]["program"] for way in compiled] for cell in other}
    assert not any(None in pair for pair in programs.values())
    differ = [
        cell
        for cell, (of_stock, of_patched) in programs.items()
        if of_stock != of_patched and reason_to_differ(*cell, optax.__version__) is None
    ]
    assert differ == []
