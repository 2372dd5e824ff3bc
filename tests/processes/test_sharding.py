"""On eight devices the patched step keeps shardings, and communicates no more than stock's."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from packaging.version import Version

pytestmark = pytest.mark.skipif(
    Version(jax.__version__) < Version("0.6"), reason="jit of older jax replicates what init makes"
)


@pytest.fixture(scope="module")
def both() -> Any:
    """What ``sharded.py`` prints on stock and on patched optax."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPTAX_DTYPEFIX")}
    inherited["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    running = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("sharded.py"))],
            env={**inherited, **variables, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
        )
        for variables in ({"OPTAX_DTYPEFIX": "off"}, {})
    ]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    return tuple(map(json.loads, outputs))


def test_params_and_state_keep_their_shardings(both: Any) -> None:
    stock, patched = both
    assert [name for name, found in patched.items() if not found["params stay"]] == []
    moved = {name for name, found in patched.items() if not found["state stays"]}
    assert moved <= {name for name, found in stock.items() if not found["state stays"]}


def test_there_is_no_collective_more(both: Any) -> None:
    stock, patched = both
    assert any(found["collectives"] for found in stock.values())
    more = {
        name: collections.Counter(found["collectives"])
        - collections.Counter(stock[name]["collectives"])
        for name, found in patched.items()
    }
    assert {name: dict(count) for name, count in more.items() if count} == {}
