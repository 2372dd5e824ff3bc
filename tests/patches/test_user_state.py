"""Test that user-defined code inside a patched function keeps the dtypes of a float32 problem."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import optax
import pytest

from support.thorough import one_of
from support.trees import types
from support.user_calls import tree, wrappers

pytestmark = [
    pytest.mark.rule("C1", "C7"),
    pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated:FutureWarning"),
]

_AFTER: dict[str, Callable[[Any], Any]] = {
    "weak": lambda leaf: jnp.where(leaf < 1, 1.0, 2.0),
    "bfloat16": lambda leaf: (leaf + 1).astype(jnp.bfloat16),
}
_STOCK = {"chain", "named_chain", "masked", "multi_transform", "partition"}


def _assert_stable(tx: Any) -> None:
    def states(params: Any) -> Any:
        first = tx.init(params)
        _, second = tx.update(params, first, params)
        _, third = tx.update(params, second, params)
        return first, second, third

    first, second, third = map(types, jax.eval_shape(states, tree(jnp.float32)))
    assert first == second == third


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("after", _AFTER)
@pytest.mark.parametrize("name", sorted(wrappers().keys() - _STOCK - {"apply_every in a chain"}))
def test_state_of_a_user_defined_transformation_is_stable(name: str, after: str) -> None:
    kind = getattr(optax, "GradientTransformationExtraArgs", optax.GradientTransformation)

    def update(grads: Any, state: Any, params: Any = None, **_: Any) -> Any:
        del params
        return grads, _AFTER[after](state)

    _assert_stable(wrappers()[name](kind(lambda _: jnp.asarray(0.0), update)))


@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
def test_hyperparameter_of_a_half_precision_schedule_is_stable(dtype: Any) -> None:
    _assert_stable(optax.inject_hyperparams(optax.sgd)(lambda _: jnp.asarray(0.1, dtype)))
