"""Reproduce the faults of ``distance_estimates``."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import PyTree
from ..._engine.patch import Reproducers
from . import _reproduce as demo

_NAMES = ("dadapt_adamw", "dog", "dowg", "momo", "momo_adam", "mechanize")
_SCALARS = ("estim_lr", "estim_dist", "max_dist", "estim_sq_dist", "barf", "s")
_VALUE = jax.ShapeDtypeStruct((), jnp.float32)


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


def _probe_zero_gradient(optax: Any) -> str | None:
    """Trace whether the new distance is a maximum with a quotient, whatever its divisor is."""
    tx = demo.public(optax, "contrib.dadapt_adamw")()

    def distance(params: PyTree) -> Any:
        return tx.update(params, tx.init(params), params)[1].estim_lr

    jaxpr: Any = jax.make_jaxpr(distance)(demo.shapes(jnp.float32)).jaxpr
    makers = {variable: e for e in jaxpr.eqns for variable in e.outvars}
    last = makers[jaxpr.outvars[0]]
    operands = [makers.get(v) for v in last.invars if not hasattr(v, "val")]
    names = [operand.primitive.name for operand in operands if operand is not None]
    if last.primitive.name == "max" and "div" in names:
        return "the distance is divided by a sum of gradients, which may be 0"
    return None


FAULTS = Reproducers(
    weak_types=demo.step(
        "Types in the state change in the first step of dog and dowg: the step compiles twice",
        _optimizers("dog", "dowg"),
        jnp.float32,
        value=_VALUE,
    ),
    promoted_updates=demo.step(
        "float32 updates or state for bfloat16 params", _ALL, jnp.bfloat16, value=_VALUE
    ),
    float64=demo.step(
        "float32 params in 64-bit mode: float64 in state, updates or arithmetic",
        _ALL,
        jnp.float32,
        in_x64=True,
        inside=True,
        value=_VALUE,
    ),
    float64_params=demo.step(
        "float64 params: the state changes from float32 to float64, or lax.clamp raises",
        _ALL,
        jnp.float64,
        in_x64=True,
        value=_VALUE,
    ),
    mixed_tree=demo.step(
        "Leaves of different dtypes: the state changes dtype, or updates are promoted",
        _ALL,
        *(jnp.bfloat16, jnp.float32),
        float32_fields=_SCALARS,
        value=_VALUE,
    ),
    mixed_halves=demo.step(
        "bfloat16 and float16 leaves in one tree: ValueError, or float32 updates",
        _ALL,
        *(jnp.bfloat16, jnp.float16),
        value=_VALUE,
    ),
    array_learning_rate=demo.step(
        "float32 number as learning rate: float32 updates for bfloat16 params",
        _optimizers(*_NAMES[:-1], learning_rate=np.asarray(0.1, np.float32)),
        jnp.bfloat16,
        value=_VALUE,
    ),
    narrow_scalars=demo.narrow_fields(
        "Distances, sums and averages are kept in the lowest dtype of the params",
        _ALL,
        jnp.bfloat16,
        names=_SCALARS,
    ),
    integer_leaf=demo.narrow_fields(
        "Integer leaves in the params make the scalars integers",
        _ALL,
        *(jnp.float32, jnp.int32),
        names=_SCALARS,
    ),
    # JAX compares complex numbers by their real parts first; lax.clamp takes no complex numbers.
    complex_params=demo.step(
        "Complex params make the scalars complex: dadapt_adamw hardly moves, mechanize raises",
        _ALL,
        jnp.complex64,
        float32_fields=_SCALARS,
        value=_VALUE,
    ),
)


@FAULTS.computed()
def stalled_sum(optax: Any) -> str | None:
    """With bfloat16 params, the sum of squared gradients of dog stops growing after 256 steps.

    A term of 16 is half a unit in the last place of 256 * 16 = 4096 in bfloat16.
    """
    tx = demo.public(optax, "contrib.dog")()
    _, state = demo.steps(tx, demo.ones(jnp.bfloat16), [1.0] * 600)
    (got,) = (part.sum_sq_norm_grads for part in state if len(part) > 1)
    text = "the sum of squared norms is {:g} after 600 steps, not {:g}"
    return demo.wrong(text, got, 600 * 16.0)  # |g|^2 = 16 at each step.


@FAULTS.computed()
def float16(optax: Any) -> str | None:
    """float16 params: dadapt_adamw and mechanize give NaN in the first steps.

    estim_lr0 = 1e-6 and eps = 1e-8 are 0 in float16, whose smallest number is 6e-8.
    """
    return _not_finite(optax, jnp.float16, 1.0)


@FAULTS.computed(probe=_probe_zero_gradient)
def zero_gradient(optax: Any) -> str | None:
    """dadapt_adamw gives NaN for good after a zero gradient in the first step.

    The divisor of the distance is the sum of all gradients: 0 / 0.
    """
    return _not_finite(optax, jnp.float32, 0.0)


def _not_finite(optax: Any, dtype: Any, gradient: float) -> str | None:
    tx = demo.public(optax, "contrib.dadapt_adamw")()
    found = demo.steps(tx, demo.ones(dtype), [gradient] * 3)
    return demo.not_finite(f"dadapt_adamw: not finite after 3 gradients of {gradient:g}", found)


@FAULTS.traced
def python_value(optax: Any) -> str | None:
    """Python numbers as value of momo: AttributeError."""
    params = demo.shapes(jnp.float32)
    for name, tx in _optimizers("momo", "momo_adam")(optax).items():
        try:
            jax.eval_shape(lambda p, tx=tx: tx.update(p, tx.init(p), p, value=1.0), params)
        except AttributeError as error:
            return f"{name}: {error}"
    return None
