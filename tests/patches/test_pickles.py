"""Frameworks read the same of a patched transformation as of stock's: signatures and pickles."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support.processes import PATCHED, STOCK, finish, run, start, stdout_of
from support.thorough import thorough_but

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def names(described: dict[str, Any]) -> dict[str, Any]:
    return {name: (found["init"], found["update"]) for name, found in described.items()}


SOME = (
    *("lookahead itself", "wide link", "adam float", "sgd schedule", "adam float MultiSteps"),
    *("chain", "masked", "inject_hyperparams", "contrib.prodigy float"),
    "contrib.schedule_free float",
)
"""Transformations of all kinds. The README's command pickles these only."""


class Outcome:
    """What three processes saw: stock, patched, and one that loads what the second pickled."""

    def __init__(self, folder: Path, only: Sequence[str]) -> None:
        self.least = 6 if only else 51
        self.folder = folder / "patched"
        folders = {"stock": STOCK, "patched": PATCHED}
        for name in folders:
            (folder / name).mkdir()
        pickles = ("-m", "support.pickles")
        both = [start(*pickles, "pickle", folder / n, *only, **v) for n, v in folders.items()]
        stock, patched = (json.loads(stdout_of(done)) for done in finish(both))
        loaded = json.loads(stdout_of(run(*pickles, "load", self.folder, *only)))
        self.functions = stock["functions"], patched["functions"]
        self.stock, self.patched = stock["transformations"], patched["transformations"]
        self.loaded = loaded["transformations"]


@pytest.fixture(scope="module", params=thorough_but(["some"], ["some", "all"]))
def outcome(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Outcome(tmp_path_factory.mktemp("pickles"), SOME if request.param == "some" else ())


@pytest.mark.rule("C0")
def test_init_and_update_have_the_signatures_of_stock(outcome: Outcome) -> None:
    assert len(outcome.stock) >= outcome.least
    assert names(outcome.patched) == names(outcome.stock)


def test_patched_functions_have_the_signatures_of_stock(outcome: Outcome) -> None:
    stock, patched = outcome.functions
    assert len(stock) > 20
    assert patched == stock


@pytest.mark.rule("C0")
@pytest.mark.parametrize("kind", ["before hints", "after hints"])
def test_a_pickle_is_not_much_larger_than_that_of_stock(outcome: Outcome, kind: str) -> None:
    """A size of 0 stands for a pickle that cannot be loaded again."""
    sizes = {
        n: (s["sizes"][kind], outcome.patched[n]["sizes"][kind]) for n, s in outcome.stock.items()
    }
    pickled = {name: both for name, both in sizes.items() if both[0]}
    assert len(pickled) >= outcome.least
    assert {n: both for n, both in pickled.items() if not 0 < both[1] <= 2 * both[0] + 2000} == {}


@pytest.mark.rule("C0")
def test_another_process_loads_the_same_transformations(outcome: Outcome) -> None:
    assert len(outcome.loaded) >= outcome.least
    same = {name: outcome.patched[name]["program"] for name in outcome.loaded}
    assert {name: found["program"] for name, found in outcome.loaded.items()} == same
    assert names(outcome.loaded) == names({name: outcome.stock[name] for name in outcome.loaded})


def test_a_loaded_link_is_lifted_by_a_new_chain() -> None:
    link = optax.scale(np.float32(0.01))  # Its updates are float32 on stock.
    loaded = link
    for _ in range(2):
        loaded = cloudpickle.loads(cloudpickle.dumps(loaded))
    params = jnp.linspace(-1, 1, 5, dtype=jnp.bfloat16)
    steps = []
    for first in (link, loaded):
        tx = optax.chain(first, optax.scale_by_adam())
        updates, state = tx.update(params, tx.init(params), params)
        steps.append((updates, state, tx.init(params)))
    assert jax.tree_util.tree_all(jax.tree_util.tree_map(identical, *steps))
    assert steps[0][0].dtype == jnp.bfloat16


def identical(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and np.array_equal(a, b))


LOAD_WITHOUT_US = """
import sys
sys.modules["optax_dtypefix"] = None  # As if it were not installed.
from pathlib import Path
import cloudpickle, optax
try:
    import optax.contrib
except ImportError:
    pass
found = [path.read_bytes() for path in Path(sys.argv[1]).glob("*.pickle")]
# A pickle with functions of the audit, as a schedule or a measure, needs them.
loaded = [cloudpickle.loads(data) for data in found if data and b".audit." not in data]
print(len(loaded), all(tx.update for tx in loaded))
"""


def test_a_process_without_the_shim_loads_stock(outcome: Outcome) -> None:
    """Where the shim is not installed, a transformation is what optax builds there."""
    done = run("-W", "ignore", "-c", LOAD_WITHOUT_US, str(outcome.folder))
    loaded, complete = stdout_of(done).split()
    assert int(loaded) >= outcome.least
    assert complete == "True"
