"""List the timed cases: optimizers, the arguments of their updates, and patches to enable."""

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
      patch: id of the patch that concerns it; empty if none does.
      build: makes the optimizer.
      takes: extra arguments of its update: of ``value``, ``loss``, ``grad`` and ``value_fn``.
      opt_in: whether the patch must be enabled by name.
      regimes: dtypes of the params, and modes.
    """

    patch: str
    build: Callable[[], Any]
    takes: tuple[str, ...] = ()
    opt_in: bool = False
    regimes: tuple[str, ...] = ("float32", "bfloat16", "float32 x64")


_CONTRIB = getattr(optax, "contrib", None)  # Some releases have none.


def _contrib(name: str, *args: Any) -> Callable[[], Any]:
    return lambda: getattr(_CONTRIB, name)(*args)


def _with_zero_nans() -> Any:
    return optax.MultiSteps(optax.chain(optax.zero_nans(), optax.adam(0.01)), 4)


def _with_a_plateau() -> Any:
    return optax.chain(optax.adam(0.01), _contrib("reduce_on_plateau")())


def _all_cases() -> dict[str, Case]:
    rate = jnp.asarray(0.01, jnp.float32)
    hyperparameters = optax.inject_hyperparams(optax.adam)
    loss = "value" if hasattr(_CONTRIB, "schedule_free_sgd") else "loss"
    cases = {
        "adam": Case("", lambda: optax.adam(0.01), regimes=("float32", "float32 x64")),
        "adam, bfloat16": Case("bfloat16_moments", lambda: optax.adam(0.01), regimes=("bfloat16",)),
        "adam, float16": Case("float16_eps", lambda: optax.adam(0.01), regimes=("float16",)),
        "adam, array as rate": Case("learning_rate", lambda: optax.adam(rate)),
        "MultiSteps(adam)": Case("multi_steps", lambda: optax.MultiSteps(optax.adam(0.01), 4)),
        "MultiSteps(zero_nans)": Case("zero_nans", _with_zero_nans),
        "apply_if_finite": Case("conditional", lambda: optax.apply_if_finite(optax.adam(0.01), 3)),
        "adafactor": Case("promotion", lambda: optax.adafactor(0.01)),
        "inject_hyperparams(adam)": Case("inject_hyperparams", lambda: hyperparameters(0.01)),
        "clip_by_global_norm": Case(
            "global_norm", lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.01))
        ),
        "fromage": Case("fromage", lambda: optax.fromage(0.01)),
        "prodigy": Case("prodigy", _contrib("prodigy")),
        "dadapt_adamw": Case("distance_estimates", _contrib("dadapt_adamw")),
        "schedule_free_sgd": Case("schedule_free", _contrib("schedule_free_sgd", 0.01)),
        "reduce_on_plateau": Case("reduce_on_plateau", _with_a_plateau, (loss,)),
        "lbfgs": Case(
            "zoom_linesearch", lambda: optax.lbfgs(memory_size=1), ("value", "grad", "value_fn")
        ),
        "adam, float32 moments": Case("float32_moments", lambda: optax.adam(0.01), opt_in=True),
        "adam, every_transform": Case("every_transform", lambda: optax.adam(0.01), opt_in=True),
    }
    absent = {
        name
        for name in ("prodigy", "dadapt_adamw", "schedule_free_sgd", "reduce_on_plateau", "lbfgs")
        if not (hasattr(optax, name) or hasattr(_CONTRIB, name))
    }
    return {name: case for name, case in cases.items() if name not in absent}


CASES = _all_cases()


COLUMNS = 100


def params_of(size: int, dtype: Any) -> Any:
    """Return a matrix and a vector with this many elements together."""
    return {
        "w": jnp.full((size // COLUMNS - 1, COLUMNS), 0.5, dtype),
        "b": jnp.full((COLUMNS,), 0.5, dtype),
    }


def loss(params: Any) -> Any:
    """Compute a weighted sum of squares, which costs little and is not solved at once."""

    def of_leaf(leaf: Any) -> Any:
        return jnp.sum(jnp.linspace(0.1, 1, COLUMNS, dtype=leaf.dtype) * (leaf - 1) ** 2)

    return sum(map(of_leaf, jax.tree_util.tree_leaves(params)))
