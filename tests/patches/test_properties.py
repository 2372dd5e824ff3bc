"""Any tree, with any hyperparameters, keeps the contract in what each patch concerns.

Traced only, so one step stands for any number: the state after it has the types of the one before.
A few examples here; ``nox -s fuzz`` draws thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import optax
import pytest
from fuzzing import SUBJECTS, Draw, Problem, is_there, loss, problems
from hypothesis import (
    event,
    given,
    strategies as st,
)

import optax_dtypefix
from optax_dtypefix.patches import (
    IDS,
    _demonstrate as demo,
    load,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    # Of optax 0.1.2, which calls functions of jax by their old names.
    pytest.mark.filterwarnings("ignore:jax.tree_:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*maybe_update is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Specifying a key will be required:UserWarning"),
]


def test_every_patch_has_a_subject() -> None:
    assert set(SUBJECTS) == set(IDS), "tests/patches/fuzzing.py says what is drawn for each patch"


@pytest.fixture(scope="module", params=[i for i in SUBJECTS if is_there(SUBJECTS[i])])
def patch_id(request: Any) -> Iterator[str]:
    opt_in = load(request.param).opt_in
    if opt_in:
        optax_dtypefix.apply(request.param)
    yield request.param
    if opt_in:
        optax_dtypefix.revert(request.param)


def outcome(patch_id: str, tx: Any, problem: Problem) -> str | None:
    extra: dict[str, Any] = {}
    if SUBJECTS[patch_id].value:
        tx, value = optax.with_extra_args_support(tx), jax.eval_shape(loss, problem.params)
        extra = {"value": value, "loss": value, "grad": problem.grads, "value_fn": loss}
    return demo.one_step(tx, problem.params, problem.grads, inside=True, **extra)


@given(data=st.data())
def test_any_tree_keeps_the_contract(patch_id: str, data: Any) -> None:
    problem = data.draw(problems(wider=SUBJECTS[patch_id].wider))
    draw = Draw(data.draw)
    with problem.modes():
        tx = SUBJECTS[patch_id].build(draw)
        try:
            broken = outcome(patch_id, tx, problem)
        except Exception as error:
            with optax_dtypefix.disabled():
                try:
                    outcome(patch_id, SUBJECTS[patch_id].build(draw.again()), problem)
                except Exception:  # It is an error of stock, too.
                    event("raises, as stock does")
                    return
            raise AssertionError("stock does not raise") from error
    event("keeps the contract")
    assert broken is None
