"""Draw trees and hyperparameters at random: the transformations of each patch keep the contract.

Each example traces one step. The state keeps its types in that step, so it keeps them in any number
of steps. This file draws a few examples; ``nox -s fuzz`` draws thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
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
from support.contract import float64_in
from support.fuzzing import Draw, Problem, loss, problems
from support.patch_cases import fuzz_case
from support.trees import dtypes_of, leaves

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


class Step(NamedTuple):
    """One step, by shapes and dtypes.

    Attributes:
      structures: of the state before and after, of the gradients and of the updates.
      before: shape, dtype and weak type of each leaf of the state.
      after: likewise.
      updates: the dtypes of the updates.
      float64: the shapes of the float64 values that are computed inside.
    """

    structures: list[Any]
    before: list[Any]
    after: list[Any]
    updates: list[Any]
    float64: list[Any]


def one_step(patch_id: str, tx: Any, problem: Problem) -> Step:
    extra: dict[str, Any] = {}
    if fuzz_case(patch_id).takes_value:
        tx, value = optax.with_extra_args_support(tx), jax.eval_shape(loss, problem.params)
        extra = {"value": value, "loss": value, "grad": problem.grads}
    seen: list[Any] = []

    def step(params: Any, grads: Any, extra: Any) -> Any:
        functions = {"value_fn": loss} if extra else {}
        state = tx.init(params)
        updates, after = tx.update(grads, state, params, **extra, **functions)
        trees = (state, after, grads, updates)
        seen.append([jax.tree_util.tree_structure(tree) for tree in trees])
        seen.extend([types_of(state), types_of(after), [u.dtype for u in leaves(updates)]])
        return leaves((updates, after))

    float64 = float64_in(step, problem.params, problem.grads, extra)
    return Step(*seen, float64)


def types_of(tree: Any) -> list[tuple[Any, ...]]:
    return [
        (jnp.shape(x), jnp.result_type(x), getattr(x, "weak_type", not hasattr(x, "dtype")))
        for x in leaves(tree)
    ]


def bits(dtype: Any) -> int:
    """Return the width of a float, or of the parts of a complex number, and 0 for an integer."""
    return int(jnp.finfo(dtype).bits) if jnp.issubdtype(dtype, jnp.inexact) else 0


def bound(*dtypes: Any) -> int:
    """Return the most bits of an update (C2): 32 for only integers, and for mixed halves."""
    inexact = {jnp.dtype(dtype) for dtype in dtypes if bits(dtype)}
    halves = {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)}
    most = max(map(bits, inexact), default=32)
    return max(most, 32) if halves <= inexact else most


def holds(dtype: Any, other: Any) -> bool:
    """Whether a dtype contains the numbers of another. Integers may be rounded."""
    return bool(dtype == other or jnp.promote_types(dtype, other) == dtype)


def is_cut(update: Any, stock: Any, most: int) -> bool:
    """Whether an update is that of stock, cast to fewer bits within its kind."""
    one_kind = jnp.iscomplexobj(update.type(0)) == jnp.iscomplexobj(stock.type(0))
    return bits(stock) > bits(update) == most and one_kind


@given(data=st.data())
def test_any_tree_keeps_the_contract(patch_id: str, data: Any) -> None:
    problem = data.draw(problems())
    draw = Draw(data.draw)

    def on_stock() -> Step | None:
        """Build the transformation again, so JAX shares no trace with the patched one."""
        try:
            with optax_dtypefix.disabled():
                return one_step(patch_id, fuzz_case(patch_id).build(draw.again()), problem)
        except Exception:  # Stock raises.
            return None

    with x64(problem.x64):
        tx = fuzz_case(patch_id).build(draw)
        try:
            step = one_step(patch_id, tx, problem)
        except Exception as error:
            if on_stock() is not None:
                raise AssertionError("stock does not raise") from error
            event("raises, as stock does")
            return
        before, after, wanted, got = step.structures
        assert (before, wanted) == (after, got)
        if problem.one_dtype or fuzz_case(patch_id).any_gradients:
            assert step.before == step.after
        inputs = leaves((problem.params, problem.grads))
        if all(bits(leaf.dtype) < 64 for leaf in inputs):
            assert not any(step.float64)  # A scalar, of shape (), is free.

        grads = dtypes_of(problem.grads)
        params = dtypes_of(problem.params)
        asked = [draw.asked] if draw.asked else []
        most = [bound(*dtypes, *asked) for dtypes in zip(grads, params)]
        rows = list(zip(step.updates, grads, most))
        assert all(bits(update) <= limit for update, _, limit in rows)
        if all(bits(update) == limit and holds(update, grad) for update, grad, limit in rows):
            event("updates are as wide as can be")
            return
        stock = on_stock()
        event("updates are as wide as stock's" if stock else "stock raises")
        for was, (update, _, limit) in zip(stock.updates if stock else (), rows):
            assert holds(update, was) or is_cut(update, was, limit)
