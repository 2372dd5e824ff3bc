"""Leaves may be numpy arrays. They are float64 by default, and float32 for JAX in 32-bit mode."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support.thorough import one_of
from support.trees import dtypes_of, tree_map

contrib = getattr(optax, "contrib", None)
BUILDERS: dict[str, Any] = {
    "adam": lambda: optax.adam(0.1),
    "adamw": lambda: optax.adamw(0.1, weight_decay=0.1),
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(0.1),
}
for name in ("prodigy", "mechanize", "momo", "schedule_free_sgd"):
    if hasattr(contrib, name):
        build = getattr(contrib, name)
        BUILDERS[name] = {
            "prodigy": build,
            "mechanize": lambda build=build: build(optax.sgd(0.1)),
        }.get(name, lambda build=build: build(0.1))


@pytest.mark.filterwarnings("error:Explicitly requested dtype")
# optax 0.1.2 calls functions of jax by their deprecated names.
@pytest.mark.filterwarnings("ignore:jax.tree_:FutureWarning")
@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    "with_params", one_of(2, [True, False]), ids=["numpy params", "params of jax"]
)
def test_numpy_leaves_give_float32_updates_without_a_warning(name: str, with_params: bool) -> None:
    tx = BUILDERS[name]()
    grads = {"w": np.full((3, 4), 0.5), "b": np.ones(4)}
    params = grads if with_params else tree_map(lambda leaf: jnp.asarray(leaf, jnp.float32), grads)
    state = tx.init(params)
    extra_args = {"value": jnp.float32(1.0)} if name == "momo" else {}
    for _ in range(2):
        updates, state = tx.update(grads, state, params, **extra_args)
    assert {*dtypes_of(updates)} == {jnp.dtype(jnp.float32)}
