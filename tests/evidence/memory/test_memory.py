"""Compare the memory and the traffic of compiled train steps with those of stock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optax
import pytest
from packaging.version import Version

from optax_dtypefix.patches.releases import RELEASES
from support.processes import CACHE, PATCHED, STOCK, run, stdout_of

RELEASE = Version(optax.__version__)
MEMORY = Path(__file__).parents[3] / "benchmarks" / "memory.py"
REGIMES = {
    "bfloat16": ("bfloat16", 2),
    "float16": ("float16", 2),
    "float32 x64": ("float32", 4),
}
"""By name: the dtype of the params and its bytes."""

pytestmark = pytest.mark.skipif(
    "audit" not in RELEASES.get(optax.__version__, {}), reason="three releases are enough"
)
Found = dict[str, dict[str, float]]


RIGHT_IN_FLOAT16 = {"fromage", "lion", "schedule_free_sgd", "sgd"}
WIDENED_IN_BFLOAT16 = {
    *("dadapt_adamw", "novograd", "prodigy", "schedule_free_adamw", "sm3", "adagrad", "adamw"),
    *("amsgrad", "lamb", "nadam", "radam", "rmsprop", "adamw, array as rate", "adamw, schedule"),
    *("apply_if_finite(adamw)", "clip_by_global_norm, adamw", "inject_hyperparams(adamw)"),
    *("MultiSteps(adamw)", "zero_nans, adamw", "adamw, one array"),
}
WIDENED_BEFORE_0_2_8 = {"MultiSteps(adamw)"}


def right_in_stock(regime: str, names: set[str]) -> set[str]:
    """Name the optimizers that need no wider arithmetic than stock's."""
    if regime == "float16":
        return names & RIGHT_IN_FLOAT16
    if regime == "bfloat16":
        old = WIDENED_BEFORE_0_2_8 if Version("0.2.8") > RELEASE else set()
        return names - WIDENED_IN_BFLOAT16 - old
    return names


@pytest.fixture(scope="module", params=REGIMES)
def regime(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def found(regime: str) -> tuple[Found, Found, Found]:
    """Count on stock, patched with params rounded to nearest, and patched."""
    dtype, _ = REGIMES[regime]
    x64 = {"JAX_ENABLE_X64": "1"} if regime.endswith("x64") else {}
    to_nearest = {**PATCHED, "OPTAX_DTYPEFIX_DISABLE": "stochastic_rounding"}
    ways = (STOCK, to_nearest, PATCHED)
    stock, patched, rounded = (
        json.loads(stdout_of(run(MEMORY, dtype, **CACHE, **x64, **way))) for way in ways
    )
    return stock, patched, rounded


def test_a_step_takes_no_more_than_stock_where_stock_is_right(
    regime: str, found: tuple[Found, Found, Found]
) -> None:
    stock, patched, _ = found
    names = right_in_stock(regime, {*stock})
    assert names
    for name in names:
        more = {key: patched[name][key] - stock[name][key] for key in stock[name]}
        # The factors of adafactor are vectors, of less than a hundredth of the params.
        assert more["traffic"] <= 0.05, name
        buffer = 0.0
        if Version("0.2.8") > RELEASE:
            # On 0.2.3 XLA keeps the float32 accumulator in one more buffer, of the same traffic. It
            # also frees the buffers of lion in another order: 1.62 bytes of them become 2.
            buffer = 4 if name in WIDENED_BEFORE_0_2_8 else {"lion": 0.4}.get(name, 0)
        # dadapt_adamw in 64-bit mode: float32 trees, which are read again, replace wider traffic.
        assert more["temporaries"] <= max(buffer, -more["traffic"]), name


def test_a_step_reads_and_writes_each_widened_tree_once_more(
    regime: str, found: tuple[Found, Found, Found]
) -> None:
    stock, patched, _ = found
    _, size = REGIMES[regime]
    for name in stock:
        # Gradients, params and updates; novograd and sm3 make one more.
        trees = stock[name]["state"] / size + 3 + (name in {"novograd", "sm3"})
        more = {key: patched[name][key] - stock[name][key] for key in stock[name]}
        assert more["traffic"] <= 8 * trees, name
        assert more["temporaries"] <= 4 * trees, name


def test_the_counts_tell_stock_and_patched_apart(
    regime: str, found: tuple[Found, Found, Found]
) -> None:
    """On old releases stock is wide where it should not be, in 64-bit mode for example."""
    stock, patched, _ = found
    differ = any(patched[name]["traffic"] != stock[name]["traffic"] for name in stock)
    assert differ == (Version("0.2.8") > RELEASE or regime != "float32 x64")


def test_to_round_params_takes_a_few_bytes_more(
    regime: str, found: tuple[Found, Found, Found]
) -> None:
    """Old params and updates are read once more; XLA copies one large array, in float32."""
    _, patched, rounded = found
    for name in patched:
        more = {key: rounded[name][key] - patched[name][key] for key in patched[name]}
        traffic, temporaries = (14.2, 4.1) if name == "adamw" else (32.2, 8.1)
        assert more["traffic"] <= traffic, name
        assert more["temporaries"] <= temporaries, name
    if not regime.startswith("float32"):
        assert rounded["sgd"]["traffic"] > patched["sgd"]["traffic"]
