"""reduce_on_plateau: values and scale are float32 or wider, updates keep the user's dtypes.

A loss counts as better if it is below the best loss by some share, 1e-4 by default. Stock keeps the
best and the average loss in the highest dtype of the params (from 0.2.7 on), and the scale in the
lowest (from 0.2.4 on). A bfloat16 has steps of 2^-8 of its size: a loss that falls by 0.03% a step
rounds to the best loss, and counts as no better. Up to 0.2.3 the values are float32, and so are the
updates of bfloat16 params. From 0.2.4 to 0.2.6 the values are weakly typed, and float64 in 64-bit
mode.

Here stock decides on the scale in 32-bit mode, from scalars of one dtype, and the gradients are
multiplied by it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
    PyTree,
    cast,
    cast_back,
    dtype_of,
    half_to_float32,
    is_inexact,
    strip_weak_type,
    tree_map,
)
from .._contract.promotion import standard_promotion
from .._contract.updates import cast_updates
from .._contract.widths import compute_dtype, statistics_dtype
from .._contract.x64 import without_x64, x64
from .._engine.patch import Patch, Stock
from ._support import (
    modules,
    reproduce as demo,
)
from ._support.arguments import arguments_of, array_in
from ._support.rebuild import call_of, rebuild
from ._support.representation import stand_in_number

PATCH = Patch(
    "reduce_on_plateau",
    summary="in bfloat16 a slowly falling loss counts as a plateau",
)


@PATCH.wraps("reduce_on_plateau", modules.contrib("reduce_on_plateau"))
def _reduce_on_plateau(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace ``optax.contrib.reduce_on_plateau``, with the arguments of the installed release.

    The state is stock's ``ReduceLROnPlateauState``. From 0.2.4 on its values and its scale are
    float32, or float64 if all params are; before 0.2.4 they are always float32. Updates are as wide
    as gradients and params. Without params, they are as wide as gradients and a scale that is not
    float32: a float32 scale may be ours, and tells nothing.
    """
    built = stock(*args, **kwargs)  # Checks the arguments, and has the right type.
    arguments = arguments_of(stock, args, kwargs)

    def init_fn(params: PyTree) -> Any:
        # Stock looks only at the dtypes of the params.
        stand_in = stand_in_number(params, statistics_dtype(params))
        return strip_weak_type(without_x64(built.init, stand_in))

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        old = "best_loss" in state._fields  # Up to 0.2.1.
        value = extra_args.get("loss" if old else "value")
        if value is None:
            return built.update(updates, state, params, **extra_args)  # type: ignore[no-any-return]
        dtype = compute_dtype(state)
        with jax.ensure_compile_time_eval():  # Stock compares the arguments to check them.
            tx = stock(**{name: array_in(number, dtype) for name, number in arguments.items()})

        def step(state: Any, value: Any) -> Any:
            return tx.update((), state, None, **{"loss" if old else "value": value})[1]

        wide_state = tree_map(lambda leaf: cast(leaf, dtype) if is_inexact(leaf) else leaf, state)
        with standard_promotion():
            new_state = without_x64(step, wide_state, cast(value, dtype))
            scale = new_state.lr if old else new_state.scale
            scaled = tree_map(lambda g: scale * half_to_float32(g), updates)
        new_state = cast_back(new_state, state)
        if params is not None:
            return cast_updates(scaled, updates, params), new_state
        told = dtype_of(state.lr if old else state.scale)
        requested = () if told == jnp.float32 else (told,)
        return cast_updates(scaled, updates, updates, requested=requested), new_state

    return rebuild(built, call_of(stock, args, kwargs), update_fn, init_fn, also_in_float32=True)


def _built(optax: Any, **arguments: Any) -> tuple[Any, str]:
    """Build the transformation, and name the argument that takes the loss on this release."""
    tx = demo.public(optax, "contrib.reduce_on_plateau")(**arguments)
    state = demo.initial(tx, jnp.float32)
    return tx, "loss" if "best_loss" in state._fields else "value"


def _show(optax: Any, *dtypes: Any, loss: Any = jnp.float32, **arguments: Any) -> str | None:
    tx, name = _built(optax, **arguments)
    value: dict[str, Any] = {name: jax.ShapeDtypeStruct((), loss)}
    return demo.one_step(tx, *dtypes, inside=loss != jnp.float64, **value)


@PATCH.fault(">=0.2.4,<0.2.7", issue=1440)
def weak_types(optax: Any) -> str | None:
    """Types of the values change in the first step: the step compiles twice."""
    return _show(optax, jnp.float32)


@PATCH.fault(">=0.1.8,<0.2.4")
def promoted_updates(optax: Any) -> str | None:
    """float32 updates for bfloat16 params."""
    tx, name = _built(optax)

    def update(params: PyTree) -> PyTree:
        return tx.update(params, tx.init(params), params, **{name: jnp.zeros((), jnp.float32)})[0]

    updates = jax.eval_shape(update, demo.shapes(jnp.bfloat16))
    return demo.wrong_dtype("{} updates for bfloat16 gradients", updates["w"], jnp.bfloat16)


@PATCH.fault(">=0.1.8")
def mixed_halves(optax: Any) -> str | None:
    """bfloat16 and float16 leaves in one tree: ValueError, or float32 updates."""
    return _show(optax, jnp.bfloat16, jnp.float16)


@PATCH.fault(">=0.2.4,<0.2.7", issue=1440)
@x64()
def float64(optax: Any) -> str | None:
    """float32 params in 64-bit mode: the values are float64."""
    return _show(optax, jnp.float32)


@PATCH.fault(">=0.1.8,<0.2.7,!=0.2.3", issue=976)
@x64()
def float64_loss(optax: Any) -> str | None:
    """float64 loss for float32 params: the state changes dtype, or lax.cond raises."""
    return _show(optax, jnp.float32, loss=jnp.float64)


@PATCH.fault(">=0.2.3", issue=1774)
def array_min_scale(optax: Any) -> str | None:
    """Arrays as min_scale with bfloat16 params: lax.cond raises, or float32 updates."""
    demo.public(optax, "contrib.reduce_on_plateau", parameter="min_scale")
    return _show(optax, jnp.bfloat16, min_scale=np.asarray(0.1, np.float32))


@PATCH.fault(">=0.2.4")
def narrow_scalars(optax: Any) -> str | None:
    """Scales, and values from 0.2.7 on, are kept in the dtype of the params."""
    return _narrow(optax, jnp.bfloat16)


@PATCH.fault(">=0.2.4")
def integer_leaf(optax: Any) -> str | None:
    """Integer leaves in the params make the scale an integer, which no factor reduces."""
    return _narrow(optax, jnp.float32, jnp.int32)


@PATCH.fault(">=0.2.7")
def complex_leaf(optax: Any) -> str | None:
    """Complex leaves in the params make the best and the average value complex."""
    return _narrow(optax, jnp.float32, jnp.complex64)


def _narrow(optax: Any, *dtypes: Any) -> str | None:
    state = demo.initial(_built(optax)[0], *dtypes)
    return demo.first_not_float32(state, [name for name in state._fields if "count" not in name])


def _after(optax: Any, losses: Any, **arguments: Any) -> Any:
    """Return the state after some losses, with bfloat16 params."""
    tx, name = _built(optax, **arguments)
    values = {name: np.asarray(losses, np.float32)}
    return demo.steps(tx, demo.ones(jnp.bfloat16), np.ones(len(losses)), **values)[1]


@PATCH.fault(">=0.2.7", abstract=False)
def no_plateau(optax: Any) -> str | None:
    """With bfloat16 params, a loss that falls by 0.03% a step counts as a plateau.

    From 2 down to 1, a bfloat16 has steps of 2^-7, 0.4% to 0.8%: patience runs out first.
    """
    state = _after(optax, 2 * 0.9997 ** np.arange(100), patience=5)
    scale = state.scale if "scale" in state._fields else state.lr
    return demo.wrong("the scale is {:g} although each loss is the best so far", scale, 1.0)


@PATCH.fault(">=0.2.7", abstract=False)
def running_mean(optax: Any) -> str | None:
    """With bfloat16 params, the mean over accumulation_size losses is wrong.

    mean + (loss - mean) / n rounds to the mean in bfloat16, as soon as n is above 256.
    """
    demo.public(optax, "contrib.reduce_on_plateau", parameter="accumulation_size")
    losses = np.linspace(1.0, 2.0, 299)
    state = _after(optax, losses, accumulation_size=300)
    return demo.wrong("the mean loss", state.avg_value, losses.mean(), rtol=1e-3)
