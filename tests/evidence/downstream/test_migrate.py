"""``migrate_state`` with what orbax, flax and equinox restore."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import optax
import pytest
from packaging.version import Version

from support import processes
from support.processes import PATCHED, STOCK, stdout_of

if TYPE_CHECKING:
    from pathlib import Path


# Before, stock's scalars of prodigy are float32 in bfloat16 too, so no number is lost.
HAS_NARROW_SCALARS = Version(optax.__version__) >= Version("0.2.4")


def run(*arguments: str, **variables: str) -> Any:
    done = processes.run("-m", "evidence.downstream.checkpoints", *arguments, **variables)
    return json.loads(stdout_of(done).splitlines()[-1])


@pytest.mark.parametrize(
    ("before", "after", "kinds", "states"),
    [
        (STOCK, PATCHED, {"cast", *["replaced"] * HAS_NARROW_SCALARS}, 20),
        (PATCHED, STOCK, {"cast"}, 15),
    ],
    ids=["from stock", "to stock"],
)
def test_a_new_state_is_one_again(
    before: Any, after: Any, kinds: set[str], states: int, tmp_path: Path
) -> None:
    run("save", str(tmp_path), **before)
    found = run("restore", str(tmp_path), **after)
    assert len(found) == states
    for name, result in found.items():
        assert result["unlike a new state"] == [], name
        assert set(result["kinds"]) <= kinds, name
    assert set().union(*(result["kinds"] for result in found.values())) == kinds
