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
      settings: dtypes of the params, and modes.
    """

    patch: str
    build: Callable[[], Any]
    takes: tuple[str, ...] = ()
    opt_in: bool = False
    settings: tuple[str, ...] = ("float32", "bfloat16", "float32 x64")


_CONTRIB = getattr(optax, "contrib", None)  # Some releases have none.


def _contrib(name: str, *args: Any) -> Callable[[], Any]:
    return lambda: getattr(_CONTRIB, name)(*args)


def _adamw() -> Any:
    return optax.adamw(0.01)


def _with_zero_nans() -> Any:
    return optax.MultiSteps(optax.chain(optax.zero_nans(), _adamw()), 4)


def _with_a_plateau() -> Any:
    return optax.chain(_adamw(), _contrib("reduce_on_plateau")())


def _all_cases() -> dict[str, Case]:
    rate = jnp.asarray(0.01, jnp.float32)
    clip = optax.clip_by_global_norm(1.0)
    hyperparameters = optax.inject_hyperparams(optax.adamw)
    loss = "value" if hasattr(_CONTRIB, "schedule_free_sgd") else "loss"
    cases = {
        "adamw": Case("", _adamw, settings=("float32", "float32 x64")),
        "adamw, bfloat16": Case("bfloat16_moments", _adamw, settings=("bfloat16",)),
        "adamw, float16": Case("float16_eps", _adamw, settings=("float16",)),
        "adamw, array as rate": Case("learning_rate", lambda: optax.adamw(rate)),
        "MultiSteps(adamw)": Case("multi_steps", lambda: optax.MultiSteps(_adamw(), 4)),
        "MultiSteps(zero_nans)": Case("zero_nans", _with_zero_nans),
        "apply_if_finite": Case("conditional", lambda: optax.apply_if_finite(_adamw(), 3)),
        "adafactor": Case("promotion", lambda: optax.adafactor(0.01)),
        "clip, inject(adamw)": Case(
            "inject_hyperparams", lambda: optax.chain(clip, hyperparameters(0.01))
        ),
        "clip_by_global_norm": Case("global_norm", lambda: optax.chain(clip, optax.sgd(0.01))),
        "fromage": Case("fromage", lambda: optax.fromage(0.01)),
        "prodigy": Case("prodigy", _contrib("prodigy")),
        "dadapt_adamw": Case("distance_estimates", _contrib("dadapt_adamw")),
        "schedule_free_sgd": Case("schedule_free", _contrib("schedule_free_sgd", 0.01)),
        "reduce_on_plateau": Case("reduce_on_plateau", _with_a_plateau, (loss,)),
        "lbfgs": Case(
            "zoom_linesearch", lambda: optax.lbfgs(memory_size=1), ("value", "grad", "value_fn")
        ),
        "adamw, float32 moments": Case("float32_moments", _adamw, opt_in=True),
    }
    absent = {
        name
        for name in ("prodigy", "dadapt_adamw", "schedule_free_sgd", "reduce_on_plateau", "lbfgs")
        if not (hasattr(optax, name) or hasattr(_CONTRIB, name))
    }
    return {name: case for name, case in cases.items() if name not in absent}


CASES = _all_cases()

COMMON = (
    "adamw, float32",
    "adamw, bfloat16",
    "adamw, float16",
    "clip, inject(adamw), bfloat16",
    "MultiSteps(adamw), bfloat16",
    "schedule_free_sgd, bfloat16",
    "adafactor, bfloat16",
)
"""The steps with which the page begins."""


def name_of(case: str, setting: str) -> str:
    """Name a step: its case and its dtypes."""
    return case if setting in case else f"{case}, {setting}"


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
