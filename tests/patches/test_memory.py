"""Compare the memory and the traffic of compiled train steps with those of stock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optax
import pytest
from packaging.version import Version

from support.processes import finish, start, stdout_of

RELEASE = Version(optax.__version__)
MEMORY = Path(__file__).parents[2] / "benchmarks" / "memory.py"
REGIMES = {
    "bfloat16": ("bfloat16", 2),
    "float16": ("float16", 2),
    "float32 x64": ("float32", 4),
}
"""By name: the dtype of the params and its bytes."""

pytestmark = pytest.mark.skipif(
    optax.__version__ not in {"0.1.9", "0.2.3", "0.2.8"}, reason="three releases are enough"
)
Found = dict[str, dict[str, float]]


def wrong_in_stock(regime: str) -> set[str]:
    """Name the optimizers whose numbers stock gets wrong in bfloat16, and which are widened."""
    if regime != "bfloat16":
        return set()
    names = {"dadapt_adamw", "novograd", "prodigy", "schedule_free_adamw", "sm3"}
    return names if Version("0.2.8") <= RELEASE else {*names, "MultiSteps(adamw)"}


@pytest.fixture(scope="module", params=REGIMES)
def regime(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def stock_and_patched(regime: str) -> tuple[Found, Found]:
    dtype, _ = REGIMES[regime]
    x64 = {"JAX_ENABLE_X64": "1"} if regime.endswith("x64") else {}
    both = (
        start(MEMORY, dtype, OPTAX_DTYPEFIX="off", **x64),
        start(MEMORY, dtype, **x64),
    )
    stock, patched = (json.loads(stdout_of(done)) for done in finish(both))
    return stock, patched


def test_a_step_takes_no_more_than_stock_where_stock_is_right(
    regime: str, stock_and_patched: tuple[Found, Found]
) -> None:
    stock, patched = stock_and_patched
    if regime == "float16":
        pytest.skip("stock is wrong in float16")
    for name in stock.keys() - wrong_in_stock(regime):
        assert patched[name]["traffic"] <= stock[name]["traffic"], name
        # XLA keeps one more buffer, of the same traffic.
        buffer = 4 if name.startswith("MultiSteps") and Version("0.2.8") > RELEASE else 0
        spared = stock[name]["traffic"] - patched[name]["traffic"]
        assert patched[name]["temporaries"] <= stock[name]["temporaries"] + max(buffer, spared)


def test_a_step_reads_and_writes_each_widened_tree_once_more(
    regime: str, stock_and_patched: tuple[Found, Found]
) -> None:
    stock, patched = stock_and_patched
    _, size = REGIMES[regime]
    for name in stock:
        # Gradients, params and updates; sm3 makes one more.
        trees = stock[name]["state"] / size + 3 + (name == "sm3")
        more = {key: patched[name][key] - stock[name][key] for key in stock[name]}
        assert more["traffic"] <= 8 * trees, name
        assert more["temporaries"] <= 4 * trees, name


def test_the_counts_tell_stock_and_patched_apart(
    regime: str, stock_and_patched: tuple[Found, Found]
) -> None:
    """On old releases stock is wide where it should not be, in 64-bit mode for example."""
    stock, patched = stock_and_patched
    if Version("0.2.8") <= RELEASE and regime != "float16":
        pytest.skip("stock is no wider here")
    assert any(patched[name]["traffic"] != stock[name]["traffic"] for name in stock)
