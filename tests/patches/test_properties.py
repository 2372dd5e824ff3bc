"""Any tree of floats, of any shapes and dtypes, keeps the contract in each patched function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import (
    HealthCheck,
    given,
    settings,
    strategies as st,
)
from support import drifting, leaves, tree_map

from optax_dtypefix.patches import _demonstrate as demo

contrib = getattr(optax, "contrib", None)
FLOATS = st.sampled_from([jnp.float32, jnp.bfloat16, jnp.float16])
SHAPES = st.sampled_from([(), (1,), (0,), (2, 3), (4, 1, 2)])


@st.composite
def problems(draw: Any) -> tuple[Any, Any]:
    """Params and gradients as shapes, each leaf of its own dtypes, in dicts, lists and None."""
    leaf = st.tuples(SHAPES, FLOATS, FLOATS)
    inner = st.recursive(
        leaf,
        lambda node: st.one_of(
            st.dictionaries(st.sampled_from("abc"), node, max_size=3),
            st.lists(node, max_size=3),
            st.none(),
        ),
        max_leaves=5,
    )
    tree = {"first": draw(leaf), "more": draw(inner)}

    def shapes(index: int) -> Any:
        return tree_map(
            lambda node: jax.ShapeDtypeStruct(node[0], node[index]),
            tree,
            is_leaf=lambda node: isinstance(node, tuple),
        )

    return shapes(1), shapes(2)


def loss(params: Any) -> Any:
    return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves(params))


def warm_up(count: Any) -> Any:
    return jnp.asarray(0.1, jnp.float32) * jnp.minimum(1.0, (count + 1) / 5.0)


QUICK: dict[str, Any] = {
    "MultiSteps(adam)": lambda: optax.MultiSteps(optax.adam(1e-2), 2),
    "MultiSteps(drifting)": lambda: optax.MultiSteps(drifting(), 3, use_grad_mean=False),
    "MultiSteps(zero_nans)": lambda: optax.MultiSteps(optax.zero_nans(), 2),
    "fromage": lambda: optax.fromage(warm_up),
}
if hasattr(contrib, "prodigy"):
    QUICK["prodigy"] = lambda: contrib.prodigy(warm_up, weight_decay=0.1)
if hasattr(contrib, "schedule_free"):
    QUICK["schedule_free"] = lambda: contrib.schedule_free_adamw(1e-2, warmup_steps=3)
    QUICK["MultiSteps(schedule_free)"] = lambda: optax.MultiSteps(QUICK["schedule_free"](), 2)

SLOW: dict[str, Any] = {}
if hasattr(optax, "scale_by_backtracking_linesearch"):
    SLOW["backtracking"] = lambda: optax.scale_by_backtracking_linesearch(3, store_grad=True)
if hasattr(optax, "lbfgs"):
    SLOW["lbfgs"] = lambda: optax.lbfgs(memory_size=2)

RELAXED = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=10, **RELAXED)
@given(problem=problems())
def test_any_tree_keeps_the_contract(name: str, problem: Any) -> None:
    params, grads = problem
    assert demo.one_step(QUICK[name](), params, grads) is None


@pytest.mark.skipif(not SLOW, reason="line searches came with optax 0.2.0")
@pytest.mark.parametrize("name", SLOW)
@settings(max_examples=4, **RELAXED)
@given(problem=problems())
def test_any_tree_keeps_the_contract_through_a_line_search(name: str, problem: Any) -> None:
    params, grads = problem
    extra = {"value": jax.eval_shape(loss, params), "grad": grads, "value_fn": loss}
    assert demo.one_step(SLOW[name](), params, grads, **extra) is None
