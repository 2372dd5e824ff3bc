"""Eager steps in float32 have stock's bits, and no eager step compiles more than on stock.

``tests/evidence/eager`` does this for all transformations. Here are those whose patch computes
otherwise than stock, or that count with Python numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support.eager_steps import compare
from support.processes import stock_and_patched
from support.python_calls import calls_into_the_shim
from support.thorough import thorough_but

NAMES = tuple(
    f"contrib.{name}"
    for name in ("prodigy", "dadapt_adamw")
    if hasattr(getattr(optax, "contrib", None), name)
)


@pytest.mark.rule("C0", "C5")
@pytest.mark.parametrize("name", thorough_but(NAMES[:1], NAMES))
def test_eager_steps_have_stocks_bits_and_compile_no_more(name: str) -> None:
    assert compare(*stock_and_patched("support.eager_steps", name)) == ([], [])


@pytest.mark.parametrize(
    ("build", "most"),
    [
        (lambda: optax.sgd(0.1), 12),
        (lambda: optax.adam(1e-3), 23),
        (lambda: optax.MultiSteps(optax.adam(1e-3), 4), 200),
    ],
    ids=["sgd", "adam", "MultiSteps"],
)
def test_a_float32_step_makes_few_python_calls_into_the_shim(build: Any, most: int) -> None:
    """Stock's own update runs, and tells its links so. Without that, adam makes about 240 calls."""
    other, tx, params = build(), build(), {"w": jnp.ones((4, 3))}
    other.update(params, other.init(params), params)  # It loads files of patches.
    state = tx.init(params)
    calls = calls_into_the_shim(lambda: tx.update(params, state, params))
    assert 0 < len(calls) <= most, calls


@pytest.mark.parametrize(
    ("build", "most"),
    [
        (lambda: optax.adam(1e-3), 115),
        (lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), 190),
        (lambda: optax.inject_hyperparams(optax.adamw)(1e-3), 290),
    ],
    ids=["adam", "clip and adamw", "inject"],
)
@pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated:FutureWarning")  # Of 0.1.2.
def test_a_bfloat16_step_makes_few_python_calls_into_the_shim(build: Any, most: int) -> None:
    """The second step: what the first one looked at is remembered."""
    tx, params = build(), {"w": jnp.ones((4, 3), jnp.bfloat16)}
    _, state = tx.update(params, tx.init(params), params)
    calls = calls_into_the_shim(lambda: tx.update(params, state, params))
    assert 0 < len(calls) <= most, calls


def test_a_step_of_sgd_makes_few_python_calls_for_a_weakly_typed_leaf() -> None:
    """To cast each update took 20 calls a leaf, and three times as long as stock's step."""
    tx, grads = optax.sgd(0.1), {str(i): jnp.asarray(1.0) + i for i in range(20)}
    assert all(leaf.weak_type for leaf in grads.values())
    state = tx.init(grads)
    assert len(calls_into_the_shim(lambda: tx.update(grads, state, grads))) <= 5 * len(grads)
    updates, _ = tx.update(grads, state, grads)
    for name, update in updates.items():
        assert not update.weak_type
        assert update == np.float32(-0.1) * grads[name]


def test_a_trace_of_multi_steps_makes_few_python_calls_for_a_leaf() -> None:
    tx, params = optax.MultiSteps(optax.sgd(0.1), 4), {str(i): jnp.ones(3) for i in range(20)}
    state = tx.init(params)
    calls = calls_into_the_shim(lambda: jax.make_jaxpr(tx.update)(params, state, params))
    assert len(calls) <= 40 * len(params)
