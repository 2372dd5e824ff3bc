"""What is timed: an optimizer, the dtypes of its params, and whether stock drifts there."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Case:
    """One optimizer.

    Attributes:
      patch: id of the patch that concerns it.
      build: makes it.
      value: whether its update takes the loss, the gradient and the function.
    """

    patch: str
    build: Callable[[], Any]
    value: bool = False


def contrib(name: str, *args: Any) -> Callable[[], Any]:
    """Makes one of those that not every release has."""
    return lambda: getattr(optax.contrib, name)(*args)


def _rate() -> Any:
    return jnp.asarray(0.01, jnp.float32)


CASES: dict[str, Case] = {
    "adam": Case("none", lambda: optax.adam(0.01)),
    "MultiSteps(adam)": Case("multi_steps", lambda: optax.MultiSteps(optax.adam(0.01), 4)),
    "MultiSteps(zero_nans)": Case(
        "zero_nans",
        lambda: optax.MultiSteps(optax.chain(optax.zero_nans(), optax.adam(0.01)), 4),
    ),
    "adam, array as rate": Case("learning_rate", lambda: optax.adam(_rate())),
    "apply_if_finite": Case("conditional", lambda: optax.apply_if_finite(optax.adam(0.01), 3)),
    "adafactor": Case("promotion", lambda: optax.adafactor(0.01)),
    "inject_hyperparams(adam)": Case(
        "inject_hyperparams", lambda: optax.inject_hyperparams(optax.adam)(0.01)
    ),
    "clip_by_global_norm": Case(
        "global_norm", lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.01))
    ),
    "fromage": Case("fromage", lambda: optax.fromage(0.01)),
}
if hasattr(optax, "contrib") and hasattr(optax.contrib, "prodigy"):
    CASES["prodigy"] = Case("prodigy", contrib("prodigy"))
if hasattr(optax, "contrib") and hasattr(optax.contrib, "schedule_free_sgd"):
    CASES["schedule_free_sgd"] = Case("schedule_free", contrib("schedule_free_sgd", 0.01))
    CASES["dog"] = Case("distance_estimates", contrib("dog"))
if hasattr(optax, "lbfgs"):
    CASES["lbfgs"] = Case("zoom_linesearch", lambda: optax.lbfgs(memory_size=3), value=True)


def params_of(size: int, dtype: Any) -> Any:
    """A matrix and a vector, of this many elements together."""
    columns = 100
    rows = size // columns - 1
    return {
        "w": jnp.full((rows, columns), 0.5, dtype),
        "b": jnp.full((columns,), 0.5, dtype),
    }


def loss(params: Any) -> Any:
    """A sum of squares: next to nothing beside the optimizer."""
    return sum(jnp.sum((leaf - 1) ** 2) for leaf in jax.tree_util.tree_leaves(params))
