"""A step depends on its arguments alone, never on what else the process did.

Each transformation takes a step on a state from ``init``, on the same state after an ``init`` with
params of other dtypes, and on the same state in a process that never called ``init``.
``tests/evidence/eager`` does this for all transformations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.history import INSIDE, compare
from support.opt_ins import OPT_INS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.rule("C0")


FEW = ("scale_by_adam",)
MORE = (*INSIDE, "scale_by_rss", "scale_by_stddev")
"""``tests/evidence/eager`` runs all transformations in both ways."""


@pytest.mark.parametrize(
    ("enabled", "names"),
    [
        ("", FEW),
        pytest.param("", MORE, marks=pytest.mark.thorough),
        pytest.param(OPT_INS, FEW, marks=pytest.mark.thorough),
    ],
    ids=["default", "default, more", "opt-in"],
)
def test_the_same_arguments_give_the_same_update_in_every_process(
    enabled: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    variables = {"OPTAX_DTYPEFIX_ENABLE": enabled} if enabled else {}
    assert compare(tmp_path / "states.pickle", *names, **variables) >= 2 * len(names)
