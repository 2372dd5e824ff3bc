"""reduce_on_plateau: values are float32 or wider, and the scale is no product of roundings.

A loss counts as better if it is below the best loss by some share, 1e-4 by default. From 0.2.7 on
stock keeps the best and the average loss in the highest dtype of the params. bfloat16 has steps of
2^-8 of its size: a loss that falls by 0.03% a step rounds to the best loss, and counts as no
better. The scale has the lowest dtype of the params (from 0.2.4 on).

Here stock decides on the scale in 32-bit mode, from scalars of one dtype. The state holds the scale
in stock's dtype. Where it is the rounding of a power of ``factor``, or of ``min_scale``, the step
uses that number. Half precision cannot tell the powers of a factor near one apart: then the scale
is float32 or wider.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
    HALVES,
    PyTree,
    cast,
    dtype_of,
    dtypes_in,
    is_half,
    is_inexact,
    tree_map,
)
from .._contract.rounding import bits_of
from .._contract.widths import compute_dtype, statistics_dtype
from .._contract.x64 import without_x64
from .._tally import Tally, paused
from .door.arguments import array_in
from .door.closures import builder_of, with_arguments
from .door.users import STEP


def change(tx: Any, arguments: dict[str, Any], tally: Tally) -> Any:
    """Decide on the scale in one dtype, and use the number that the scale is the rounding of.

    The state is stock's ``ReduceLROnPlateauState``. From 0.2.4 on its values are float32, or
    float64 if all params are; before 0.2.4 they are always float32. The scale has stock's dtype, or
    that of the values where stock has none, or one too narrow for ``factor``. Updates are as wide
    as gradients and params. Without params, they are as wide as gradients and a scale that is not
    float32: a float32 scale may be ours, and tells nothing.
    """

    @functools.wraps(tx.init)
    def init_fn(params: PyTree) -> Any:
        tally.reach()
        # Stock looks only at the dtypes of the params.
        dtype = statistics_dtype(params)
        # NumPy: a probe must not create JAX arrays.
        state = without_x64(tx.init, np.zeros((), dtype))
        field = _scale_field(state)
        narrow = _dtype_of_scale(tx, params, arguments["factor"])
        return state._replace(**{field: cast(getattr(state, field), narrow)}) if narrow else state

    @functools.wraps(tx.update)
    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        tally.reach()
        field, around = _scale_field(state), STEP.get()
        value_name = "loss" if "best_loss" in state._fields else "value"  # Up to 0.2.1.
        value = extra_args.get(value_name)
        if value is None:
            return tx.update(updates, state, params, **extra_args)  # type: ignore[no-any-return]
        dtype, scale = compute_dtype(state), getattr(state, field)
        kept = around.lent.get(id(scale), scale) if around else scale
        if around and params is None and dtype_of(kept) != jnp.float32:
            around.ask(updates, (dtype_of(kept),))
        if is_half(kept):
            numbers = (arguments["factor"], arguments.get("min_scale", 0.0))
            exact = _unrounded(kept, *(cast(number, dtype) for number in numbers))
            state = state._replace(**{field: exact})

        def step(state: Any, value: Any) -> Any:
            update = with_arguments(
                builder_of(tx.update), tx.update, lambda _, number: array_in(number, dtype)
            )
            return update((), state, None, **{value_name: value})[1]

        wide_state = tree_map(lambda leaf: cast(leaf, dtype) if is_inexact(leaf) else leaf, state)
        new_state = without_x64(step, wide_state, cast(value, dtype))
        return tree_map(lambda g: getattr(new_state, field) * g, updates), new_state

    return tx._replace(init=init_fn, update=update_fn)


def _scale_field(state: Any) -> str:
    return "scale" if "scale" in state._fields else "lr"  # Up to 0.2.1.


def _dtype_of_scale(built: Any, params: PyTree, factor: Any) -> Any:
    """Return the half precision in which stock keeps the scale, if powers of the factor differ."""
    shapes = [jax.ShapeDtypeStruct((), dtype) for dtype in dtypes_in(params)]
    try:
        with paused():
            state = jax.eval_shape(built.init, shapes)
    except Exception:  # Of bfloat16 and float16, none is the lowest.
        return None
    dtype = getattr(state, _scale_field(state)).dtype
    return dtype if dtype in HALVES and 1 - float(factor) > jnp.finfo(dtype).eps else None


@functools.partial(jax.jit, inline=True)
def _unrounded(scale: Any, factor: Any, least: Any) -> Any:
    """Return the least scale or the power of the factor that ``scale`` is the rounding of."""
    wide = scale.astype(factor.dtype)
    power = factor ** jnp.round(jnp.log(wide) / jnp.log(factor))
    exact = jnp.where(bits_of(power.astype(scale.dtype)) == bits_of(scale), power, wide)
    exact = jnp.where(bits_of(least.astype(scale.dtype)) == bits_of(scale), least, exact)
    # The sum is exact, since both are so near, and has stock's derivative.
    return wide + jax.lax.stop_gradient(jnp.where(exact == wide, 0, exact - wide))
