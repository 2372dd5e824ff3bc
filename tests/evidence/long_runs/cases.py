"""The long runs: an optimizer, its reference, and the scalar statistics that both have."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable

import optax

from evidence.long_runs import digits, references

HALVES = ("bfloat16", "float16")
WEIGHTS = digits.FEATURES * digits.CLASSES


@dataclasses.dataclass(frozen=True)
class Case:
    """One long run.

    Attributes:
      name: the optimizer.
      patch: id of the patch that fixes it.
      build: builds the transformation.
      reference: the same in numpy.
      scalars: fields of the state that are scalar statistics. ``sum of nu`` is the sum of an
        array, ``norm of update`` the norm of all updates.
      dtypes: dtypes of the params in which stock is wrong.
      with_value: whether the update takes the loss.
      scale: the loss scale, which keeps gradients in the range of float16.
      one_by_one: whether each param is a leaf of its own.
      opt_in: whether the patch is opt-in.
    """

    name: str
    patch: str
    build: Callable[[], Any]
    reference: Callable[..., references.Step]
    scalars: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = HALVES
    with_value: bool = False
    scale: float = 1.0
    one_by_one: bool = False
    opt_in: bool = False


def contrib(name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: getattr(optax.contrib, name)(*args, **kwargs)


def on_plateau() -> Any:
    plateau = optax.contrib.reduce_on_plateau(factor=0.5, patience=2, accumulation_size=300)
    return optax.chain(optax.sgd(0.5), plateau)


def clipped(scale: float) -> Callable[[], Any]:
    return lambda: optax.chain(optax.clip_by_global_norm(0.2 * scale), optax.sgd(0.5 / scale))


def factored() -> Any:
    return optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=2), optax.scale_by_learning_rate(0.01)
    )


def by(reference: Any, **arguments: Any) -> Any:
    return functools.partial(reference, **arguments)


def in_float16(name: str, reference: Any) -> Case:
    rate = 0.01
    return Case(
        name,
        "float16_eps",
        lambda: getattr(optax, name)(rate),
        by(reference, rate=rate),
        dtypes=("float16",),
    )


PLATEAU = {"rate": 0.5, "size": 300, "patience": 2, "factor": 0.5}
SHAPES = ((digits.FEATURES, digits.CLASSES), (digits.CLASSES,))
PARTS = (slice(0, WEIGHTS), slice(WEIGHTS, None))

LARGE = 4096.0
"""The scale of a loss that sums over examples: gradient norms are in the hundreds."""

CASES = (
    Case(
        "schedule_free_sgd",
        "schedule_free",
        contrib("schedule_free_sgd", 0.5),
        by(references.schedule_free_sgd, rate=0.5),
        ("weight_sum", "max_lr", "b1"),
    ),
    Case(
        "prodigy",
        "prodigy",
        contrib("prodigy", estim_lr0=1e-3),
        by(references.prodigy, d0=1e-3),
        ("estim_lr", "numerator_weighted"),
    ),
    Case(
        "dadapt_adamw",
        "distance_estimates",
        contrib("dadapt_adamw"),
        references.dadapt_adamw,
        ("estim_lr", "numerator_weighted"),
    ),
    Case(
        "dog",
        "distance_estimates",
        contrib("dog", 0.5, ("heuristic", 0.01)),
        by(references.dog, rate=0.5, initial=0.01),
        ("max_dist", "sum_sq_norm_grads"),
    ),
    Case(
        "dowg",
        "distance_estimates",
        contrib("dowg", 0.5),
        by(references.dowg, rate=0.5),
        ("estim_sq_dist", "weighted_sq_norm_grads"),
    ),
    Case(
        "momo",
        "distance_estimates",
        contrib("momo", 0.5),
        by(references.momo, rate=0.5),
        ("barf", "gamma"),
        ("bfloat16",),
        with_value=True,
    ),
    Case(
        "momo_adam",
        "distance_estimates",
        contrib("momo_adam", 0.01),
        by(references.momo_adam, rate=0.01),
        ("barf", "gamma"),
        with_value=True,
    ),
    Case(
        "mechanize(sgd)",
        "distance_estimates",
        lambda: optax.contrib.mechanize(optax.sgd(0.5), s_init=0.01),
        by(references.mechanic, rate=0.5, initial=0.01),
        ("r", "m", "v", "s"),
    ),
    Case(
        "inject_hyperparams(adam)",
        "inject_hyperparams",
        lambda: optax.inject_hyperparams(optax.adam)(0.01),
        by(references.adam, rate=0.01),
    ),
    Case(
        "clip_by_global_norm, norms of hundreds",
        "global_norm",
        clipped(LARGE),
        by(references.clipped_sgd, rate=0.5, limit=0.2, scale=LARGE),
        ("norm of update",),
        ("float16",),
        scale=LARGE,
    ),
    Case(
        "clip_by_global_norm, 650 leaves",
        "global_norm",
        clipped(1.0),
        by(references.clipped_sgd, rate=0.5, limit=0.2, scale=1.0),
        ("norm of update",),
        ("bfloat16",),
        one_by_one=True,
    ),
    Case(
        "reduce_on_plateau",
        "reduce_on_plateau",
        on_plateau,
        by(references.sgd_on_plateau, **PLATEAU),
        ("scale", "best_value", "avg_value"),
        ("bfloat16",),
        with_value=True,
    ),
    in_float16("adam", references.adam),
    in_float16("nadam", references.nadam),
    in_float16("amsgrad", references.amsgrad),
    in_float16("adabelief", references.adabelief),
    Case(
        "rmsprop",
        "float16_eps",
        lambda: optax.rmsprop(0.003, decay=0.99),
        by(references.rmsprop, rate=0.003, decay=0.99),
        dtypes=("float16",),
    ),
    Case(
        "adafactor",
        "float16_eps",
        factored,
        by(references.adafactor, rate=0.01, shapes=SHAPES),
        dtypes=("float16",),
    ),
    Case(
        "lamb",
        "float16_eps",
        lambda: optax.lamb(0.01, eps=1e-8),
        by(references.lamb, rate=0.01, parts=PARTS),
        dtypes=("float16",),
    ),
    Case(
        "adam, float32_moments",
        "float32_moments",
        lambda: optax.adam(0.01, mu_dtype="float32"),
        by(references.adam, rate=0.01),
        ("sum of nu",),
        opt_in=True,
    ),
    Case(
        "rmsprop, float32_moments",
        "float32_moments",
        lambda: optax.rmsprop(0.003, decay=0.999),
        by(references.rmsprop, rate=0.003, decay=0.999),
        ("sum of nu",),
        opt_in=True,
    ),
    Case(
        "adafactor, float32_moments",
        "float32_moments",
        factored,
        by(references.adafactor, rate=0.01, shapes=SHAPES),
        ("v_row", "v_col", "v"),
        opt_in=True,
    ),
)
