"""Eager steps in float32 have stock's bits, and no eager step compiles more than on stock.

``tests/evidence/eager`` does this for all transformations. Here are those whose patch computes
otherwise than stock, or that count with Python numbers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import optax_dtypefix
from support.eager_steps import compare
from support.processes import stock_and_patched

NAMES = tuple(
    f"contrib.{name}"
    for name in ("prodigy", "dadapt_adamw")
    if hasattr(getattr(optax, "contrib", None), name)
)


@pytest.mark.skipif(not NAMES, reason="they came with optax 0.1.8")
def test_eager_steps_have_stocks_bits_and_compile_no_more() -> None:
    assert compare(*stock_and_patched("support.eager_steps", *NAMES)) == ([], [])


OURS = tuple(
    map(str, (Path(optax_dtypefix.__file__).parent, Path(__file__).parents[2] / "patches"))
)


@pytest.mark.parametrize(
    ("build", "most"),
    [(lambda: optax.adam(1e-3), 25), (lambda: optax.MultiSteps(optax.adam(1e-3), 4), 250)],
    ids=["adam", "MultiSteps"],
)
def test_a_float32_step_makes_few_python_calls_into_the_shim(build: Any, most: int) -> None:
    """Stock's own update runs. Without that, adam makes about 240 calls."""
    tx, params = build(), {"w": jnp.ones((4, 3))}
    state, calls = tx.init(params), []

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls.append(frame.f_code.co_name)

    profile = sys.getprofile()
    sys.setprofile(count)
    try:
        tx.update(params, state, params)
    finally:
        sys.setprofile(profile)
    assert 0 < len(calls) <= most, calls
