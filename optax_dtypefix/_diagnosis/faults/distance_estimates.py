"""Reproduce the faults of ``distance_estimates``."""

from __future__ import annotations

from typing import Any, Callable

import jax
import numpy as np

from ..probes import Reproducer
from . import _reproduce as demo

_NAMES = ("dadapt_adamw", "dog", "dowg", "momo", "momo_adam", "mechanize")
_SCALARS = ("estim_lr", "estim_dist", "max_dist", "estim_sq_dist", "barf", "s")
_VALUE = jax.ShapeDtypeStruct((), "float32")


def _optimizers(*names: str, **arguments: Any) -> Callable[[Any], dict[str, Any]]:
    """Return a function that builds each optimizer of the package.

    Their updates ignore a value that they do not need.
    """

    def build(optax: Any) -> dict[str, Any]:
        bases = {"mechanize": (optax.sgd(0.1),)}
        found = demo.all_public(optax, *(f"contrib.{name}" for name in names))
        return {
            name: optax.with_extra_args_support(build(*bases.get(name, ()), **arguments))
            for name, build in found.items()
        }

    return build


_ALL = _optimizers(*_NAMES)


_MAY_DIVIDE_BY_0 = demo.operation(
    "The distance is divided by a sum of gradients",
    _optimizers("dadapt_adamw"),
    demo.is_quotient_of_sums,
    demo.shapes("float32"),
)


def _sum_of_dog(optax: Any) -> Any:
    tx = demo.public(optax, "contrib.dog")()
    _, state = demo.steps(tx, demo.ones("bfloat16"), [1.0] * 600)
    return next(part.sum_sq_norm_grads for part in state if len(part) > 1)


def _not_finite(summary: str, dtype: Any, gradient: float) -> Reproducer:
    """Reproduce three steps of dadapt_adamw of which one is not finite."""

    def compute(optax: Any) -> Any:
        tx = demo.public(optax, "contrib.dadapt_adamw")()
        return demo.steps(tx, demo.ones(dtype), [gradient] * 3)

    text = f"dadapt_adamw: not finite after 3 gradients of {gradient:g}"
    return demo.not_finite(summary, text, compute)


def _describe_python_value(tx: Any) -> str | None:
    try:
        return demo.one_step(tx, "float32", value=1.0)
    except AttributeError as error:  # Of a probe, this means that it does not know the release.
        return str(error)


FAULTS = {
    "weak_types": demo.step(
        "Types in the state change in the first step of dog and dowg: the step compiles twice",
        _optimizers("dog", "dowg"),
        "float32",
        value=_VALUE,
    ),
    "promoted_updates": demo.step(
        "float32 updates or state for bfloat16 params", _ALL, "bfloat16", value=_VALUE
    ),
    "float64": demo.step(
        "float32 params in 64-bit mode: float64 in state, updates or arithmetic",
        _ALL,
        "float32",
        in_x64=True,
        value=_VALUE,
    ),
    "float64_params": demo.step(
        "float64 params: the state changes from float32 to float64, or lax.clamp raises",
        _ALL,
        "float64",
        in_x64=True,
        value=_VALUE,
    ),
    "mixed_tree": demo.step(
        "Leaves of different dtypes: the state changes dtype, or updates are promoted",
        _ALL,
        *("bfloat16", "float32"),
        float32_fields=_SCALARS,
        value=_VALUE,
    ),
    "mixed_halves": demo.step(
        "bfloat16 and float16 leaves in one tree: ValueError, or float32 updates",
        _ALL,
        *("bfloat16", "float16"),
        value=_VALUE,
    ),
    "array_learning_rate": demo.step(
        "float32 number as learning rate: float32 updates for bfloat16 params",
        # That of dog and dowg is of ``scale``, which ``learning_rate`` patches.
        _optimizers("dadapt_adamw", "momo", "momo_adam", learning_rate=np.asarray(0.1, np.float32)),
        "bfloat16",
        value=_VALUE,
    ),
    "narrow_scalars": demo.narrow_fields(
        "Distances, sums and averages are kept in the lowest dtype of the params",
        _ALL,
        "bfloat16",
        names=_SCALARS,
    ),
    "integer_leaf": demo.narrow_fields(
        "Integer leaves in the params make the scalars integers",
        _ALL,
        *("float32", "int32"),
        names=_SCALARS,
    ),
    # A term of |g|^2 = 16 is half a unit in the last place of 256 * 16 = 4096 in bfloat16.
    "stalled_sum": demo.number(
        "With bfloat16 params, the sum of squared gradients of dog stops growing after 256 steps",
        "the sum of squared norms is {:g} after 600 steps, not {:g}",
        _sum_of_dog,
        600 * 16.0,
    ),
    # estim_lr0 = 1e-6 and eps = 1e-8 are 0 in float16, whose smallest number is 6e-8.
    "float16": _not_finite(
        "float16 params: dadapt_adamw and mechanize give NaN in the first steps", "float16", 1.0
    ),
    # The divisor of the distance is the sum of all gradients: 0 / 0.
    "zero_gradient": _not_finite(
        "dadapt_adamw gives NaN for good after a zero gradient in the first step",
        "float32",
        0.0,
    )._replace(probe=_MAY_DIVIDE_BY_0.run),
    "python_value": demo.traced(
        demo.row(
            "Python numbers as value of momo: AttributeError",
            _optimizers("momo", "momo_adam"),
            _describe_python_value,
        )
    ),
}
