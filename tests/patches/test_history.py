"""A step depends on its arguments alone, never on what else the process did.

Each transformation takes a step on a state from ``init``, on the same state after an ``init`` with
params of other dtypes, and on the same state in a process that never called ``init``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support.processes import run, stdout_of

if TYPE_CHECKING:
    from pathlib import Path

OPT_IN = "float32_moments,float32_averages,every_transform"


@pytest.mark.parametrize("enabled", ["", OPT_IN], ids=["default", "opt-in"])
def test_the_same_arguments_give_the_same_update_in_every_process(
    enabled: str, tmp_path: Path
) -> None:
    variables = {"OPTAX_DTYPEFIX_ENABLE": enabled} if enabled else {}
    arguments = ("-m", "support.history", str(tmp_path / "states.pickle"))
    here = json.loads(stdout_of(run(*arguments, **variables)))
    elsewhere = json.loads(stdout_of(run(*arguments, "restore", **variables)))
    assert len(here) > 100
    assert {*here} == {*elsewhere}
    for name, (first, after_another_init) in here.items():
        assert after_another_init == first, name
        assert elsewhere[name] == first, name
