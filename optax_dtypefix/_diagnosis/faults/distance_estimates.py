"""Reproduce the faults of ``distance_estimates``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    PyTree,
)
from ..._contract.x64 import x64
from ..._engine.patch import Reproducers
from . import _reproduce as demo

FAULTS = Reproducers()


_NAMES = ("dadapt_adamw", "dog", "dowg", "momo", "momo_adam", "mechanize")


def _optimizers(optax: Any, names: tuple[str, ...] = _NAMES, **arguments: Any) -> dict[str, Any]:
    """Build each optimizer of the release; its update ignores a value that it does not need."""
    bases = {"mechanize": (optax.sgd(0.1),)}
    found = demo.all_public(optax, *(f"contrib.{name}" for name in names))
    return {
        name: optax.with_extra_args_support(build(*bases.get(name, ()), **arguments))
        for name, build in found.items()
    }


def _show(optimizers: dict[str, Any], *dtypes: Any, inside: bool = False) -> str | None:
    value = jax.ShapeDtypeStruct((), jnp.float32)
    return demo.first_named(
        lambda tx: demo.one_step(tx, *dtypes, inside=inside, value=value), optimizers
    )


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


@FAULTS.traced
def weak_types(optax: Any) -> str | None:
    """Types in the state change in the first step of dog and dowg: the step compiles twice."""
    return _show(_optimizers(optax, ("dog", "dowg")), jnp.float32)


@FAULTS.traced
def promoted_updates(optax: Any) -> str | None:
    """float32 updates or state for bfloat16 params."""
    return _show(_optimizers(optax), jnp.bfloat16)


@FAULTS.traced
@x64()
def float64(optax: Any) -> str | None:
    """float32 params in 64-bit mode: float64 in state, updates or arithmetic."""
    return _show(_optimizers(optax), jnp.float32, inside=True)


@FAULTS.traced
@x64()
def float64_params(optax: Any) -> str | None:
    """float64 params: the state changes from float32 to float64, or lax.clamp raises."""
    return _show(_optimizers(optax), jnp.float64)


@FAULTS.traced
def mixed_tree(optax: Any) -> str | None:
    """Leaves of different dtypes: the state changes dtype, or updates are promoted."""
    optimizers, dtypes = _optimizers(optax), (jnp.bfloat16, jnp.float32)
    return _narrow(optimizers, *dtypes) or _show(optimizers, *dtypes)


@FAULTS.traced
def mixed_halves(optax: Any) -> str | None:
    """bfloat16 and float16 leaves in one tree: ValueError, or float32 updates."""
    return _show(_optimizers(optax), jnp.bfloat16, jnp.float16)


@FAULTS.traced
def array_learning_rate(optax: Any) -> str | None:
    """float32 number as learning rate: float32 updates for bfloat16 params."""
    rate = np.asarray(0.1, np.float32)
    return _show(_optimizers(optax, _NAMES[:-1], learning_rate=rate), jnp.bfloat16)


@FAULTS.traced
def narrow_scalars(optax: Any) -> str | None:
    """Distances, sums and averages are kept in the lowest dtype of the params."""
    return _narrow(_optimizers(optax), jnp.bfloat16)


@FAULTS.traced
def integer_leaf(optax: Any) -> str | None:
    """Integer leaves in the params make the scalars integers."""
    return _narrow(_optimizers(optax), jnp.float32, jnp.int32)


@FAULTS.traced
def complex_params(optax: Any) -> str | None:
    """Complex params make the scalars complex: dadapt_adamw hardly moves, mechanize raises.

    JAX compares complex numbers by their real parts first; lax.clamp takes no complex numbers.
    """
    optimizers = _optimizers(optax)
    return _show(optimizers, jnp.complex64) or _narrow(optimizers, jnp.complex64)


_SCALARS = ("estim_lr", "estim_dist", "max_dist", "estim_sq_dist", "barf", "s")


def _narrow(optimizers: dict[str, Any], *dtypes: Any) -> str | None:
    return demo.first_named(
        lambda tx: demo.first_not_float32(demo.initial(tx, *dtypes), _SCALARS), optimizers
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
    for name, tx in _optimizers(optax, ("momo", "momo_adam")).items():
        try:
            jax.eval_shape(lambda p, tx=tx: tx.update(p, tx.init(p), p, value=1.0), params)
        except AttributeError as error:
            return f"{name}: {error}"
    return None
