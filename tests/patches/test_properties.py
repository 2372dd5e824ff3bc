"""Draw trees and hyperparameters at random: the transformations of each patch keep the contract.

Each example traces one step. The state keeps its types in that step, so it keeps them in any number
of steps. This file draws a few examples; ``nox -s fuzz`` draws thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import optax
import pytest
from hypothesis import (
    event,
    given,
    strategies as st,
)

import optax_dtypefix
from optax_dtypefix._contract.x64 import x64
from optax_dtypefix.patches import IDS, load
from support.contract import Step, broken, narrower, one_step
from support.fuzzing import Draw, Problem, loss, problems
from support.patch_cases import fuzz_case

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    # optax 0.1.2 calls functions of jax by their deprecated names.
    pytest.mark.filterwarnings("ignore:jax.tree_:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*maybe_update is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Specifying a key will be required:UserWarning"),
]


@pytest.fixture(scope="module", params=[i for i in IDS if fuzz_case(i).is_in_release()])
def patch_id(request: Any) -> Iterator[str]:
    opt_in = load(request.param).opt_in
    if opt_in:
        optax_dtypefix.apply(request.param)
    yield request.param
    if opt_in:
        optax_dtypefix.revert(request.param)


def step_of(patch_id: str, tx: Any, problem: Problem) -> Step:
    extra: dict[str, Any] = {}
    if fuzz_case(patch_id).takes_value:
        tx, value = optax.with_extra_args_support(tx), jax.eval_shape(loss, problem.params)
        extra = {"value": value, "loss": value, "grad": problem.grads, "value_fn": loss}
    return one_step(tx, problem.params, problem.grads, extra)


@pytest.mark.rule("C0", "C1", "C2", "C3")
@given(data=st.data())
def test_any_tree_keeps_the_contract(patch_id: str, data: Any) -> None:
    problem = data.draw(problems())
    draw = Draw(data.draw)

    def on_stock() -> Step | None:
        """Build the transformation again, so JAX shares no trace with the patched one."""
        try:
            with optax_dtypefix.disabled():
                return step_of(patch_id, fuzz_case(patch_id).build(draw.again()), problem)
        except Exception:  # Stock raises.
            return None

    with x64(problem.x64):
        tx = fuzz_case(patch_id).build(draw)
        try:
            step = step_of(patch_id, tx, problem)
        except Exception as error:
            if on_stock() is not None:
                raise AssertionError("stock does not raise") from error
            event("raises, as stock does")
            return
        stable = problem.one_dtype or fuzz_case(patch_id).any_gradients
        asked = (draw.asked,) if draw.asked else ()
        trees = problem.params, problem.grads
        assert list(broken(step, *trees, asked, stable=stable)) == []
        assert list(narrower(step, *trees, on_stock, asked)) == []
