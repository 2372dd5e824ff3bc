"""The audit of the installed optax: nothing is broken, and what was right has not changed.

Two processes, stock and patched, trace every cell. Where stock keeps C1 to C3, the patched program
has to be identical, unless a patch fixes wrong values there.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import optax
import pytest
from packaging.version import Version

from evidence.audit.known_exceptions import reason_for, reason_to_narrow
from evidence.audit.regimes import REGIMES
from evidence.audit.results import narrowed, worse
from support.processes import PATCHED, STOCK, finish, start, stdout_of

SAME_DTYPES = {regime.name for regime in REGIMES if regime.same_dtypes}
HALVES = ("bf16", "f16", "mixed", "bf16 x64", "wider", "narrower", "f16 grads")
INTEGERS = ("integer leaf", "integer matrix", "int8 grads")

Cell = tuple[str, str, str, str]
"""Name, variant of the learning rate, wrapper, regime."""


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Cells where a patch fixes wrong values, so that programs have to differ.

    Attributes:
      patch: id of the patch.
      names: transformations without their module; empty for all.
      regimes: names of regimes; empty for all.
      inside: wrappers; empty for all.
    """

    patch: str
    names: tuple[str, ...] = ()
    regimes: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()

    def covers(self, cell: Cell) -> bool:
        name, _, inside, regime = cell
        return (
            (not self.names or name.rpartition(".")[2] in self.names)
            and (not self.regimes or regime in self.regimes)
            and (not self.inside or inside in self.inside)
        )


FIXED = (
    Fixed("zero_nans", inside=("MultiSteps",)),
    Fixed("zero_nans", names=("MultiSteps",)),
    Fixed("prodigy", names=("prodigy",)),
    Fixed(
        "distance_estimates",
        names=("dadapt_adamw", "dog", "dowg", "momo", "momo_adam", "mechanize"),
    ),
    Fixed("float16_eps", regimes=("f16",)),
    Fixed("inject_hyperparams", regimes=(*HALVES, *INTEGERS), inside=("inject_hyperparams",)),
    Fixed("inject_hyperparams", names=("inject_hyperparams", "inject_stateful_hyperparams")),
    Fixed(
        "global_norm",
        names=(
            *("adaptive_grad_clip", "clip_by_block_rms", "clip_by_global_norm", "normalize"),
            *("scale_by_trust_ratio", "lamb", "lars", "fromage", "adafactor"),
            *("scale_by_param_block_norm", "scale_by_param_block_rms", "normalize_by_update_norm"),
            *("differentially_private_aggregate", "dpsgd", "sam", "polyak_sgd", "scale_by_polyak"),
        ),
        regimes=HALVES,
    ),
    Fixed(
        "zoom_linesearch",
        names=(
            *("lbfgs", "scale_by_lbfgs"),
            *("scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"),
        ),
        regimes=HALVES,
    ),
    # In the branches of cond the weak types of stock are lost.
    Fixed(
        "zoom_linesearch",
        names=("lbfgs", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"),
        inside=("apply_if_finite",),
    ),
    # Their state is float32 for float32 params, although the gradients are float64.
    Fixed(
        "promotion",
        names=(
            *("adafactor", "scale_by_factored_rms", "cocob", "scale_by_cocob"),
            *("noisy_sgd", "add_noise", "scale_by_distance_over_gradients"),
        ),
        regimes=("f64 grads",),
    ),
    # Its float32 copy of float64 params is widened before ``cond``; stock widens it in a branch.
    Fixed(
        "promotion",
        names=("scale_by_distance_over_gradients",),
        regimes=("f64 x64",),
        inside=("apply_if_finite",),
    ),
    # A float32 schedule of float64 params is widened before it is used, not after.
    Fixed("fromage", names=("fromage",), regimes=("f64 x64",)),
    Fixed("schedule_free", names=("schedule_free", "schedule_free_adamw", "schedule_free_sgd")),
    Fixed("reduce_on_plateau", names=("reduce_on_plateau",)),
    Fixed("promotion", names=("scale_by_novograd", "novograd"), regimes=HALVES),
)


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


def test_programs_are_identical_where_stock_keeps_the_contract(cells: Any, tmp_path: Path) -> None:
    stock, patched = cells
    kept = [cell for cell in stock if not (stock[cell]["broken"] or patched[cell]["broken"])]
    other = [cell for cell in kept if stock[cell]["program"] != patched[cell]["program"]]
    assert len(other) < len(kept) / 2
    unexplained = [cell for cell in other if not any(entry.covers(cell) for entry in FIXED)]
    # What jax gives to XLA may differ by a cast that XLA removes.
    wanted = tmp_path / "wanted.json"
    wanted.write_text(json.dumps(unexplained))
    compiled_stock, compiled_patched = both(tmp_path, str(wanted))
    differ = [
        cell
        for cell in unexplained
        if compiled_stock[cell]["program"] != compiled_patched[cell]["program"]
    ]
    assert differ == []
