"""schedule_free: scalar statistics are float32, and half-precision arithmetic is done in float32.

The averaged weights are x += c (z - x) with c = lr_t^2 / sum(lr^2) (Defazio et al. 2024, The Road
Less Scheduled, https://arxiv.org/abs/2405.15682). In bfloat16 sum + lr^2 == sum from sum = 256 lr^2
on. Then c stays constant and the average forgets. In 0.2.3 the sum is float32, but so are updates
of bfloat16 params.

Here stock runs on float32 copies of the half-precision leaves, around the user's base optimizer,
which sees its usual dtypes.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable

import jax.numpy as jnp

from .._contract.dtypes import (
    PyTree,
    cast,
    dtype_of,
    is_array,
    is_half,
    is_inexact,
    is_weak,
    leaves,
    strip_weak_type,
    tree_map,
)
from .._contract.kinds import promote_initial_state
from .._contract.state import cast_back
from .._contract.updates import cast_updates, same_dtypes
from .._contract.widths import compute_dtype, promoted, statistics_dtype
from .._engine.patch import Stock
from .door.arguments import arguments_of, requested_dtypes
from .door.float32 import cast_hyperparameter, half_to_float32
from .door.rebuild import call_of, rebuild

STATISTICS = ("b1", "weight_sum", "max_lr")


def replace(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace ``optax.contrib.schedule_free``, with the arguments of the installed release.

    The state is stock's ``ScheduleFreeState``. ``b1``, ``weight_sum`` and ``max_lr`` are float32,
    or float64 if all params are. Updates are as wide as stock's, which follow ``z`` and the params,
    bounded by gradients, params and a ``state_dtype`` that the user asked for. ``z`` of an integer
    param is a float.
    """
    import optax

    built = stock(*args, **kwargs)  # Checks the arguments, and has the right type.
    arguments = arguments_of(stock, args, kwargs)
    default = inspect.signature(stock).parameters["state_dtype"].default
    requested = requested_dtypes(stock, args, kwargs)
    # Stock's updates are also as wide as its scalars: in 0.2.3 float32, or as the value of a
    # schedule; later only by arguments.
    scalars, in_old_release = _strong(*arguments.values()), default is not None
    if in_old_release:
        scalars = (*scalars, jnp.dtype(jnp.float32))
    if arguments["state_dtype"] is None:
        arguments["state_dtype"] = default
    base = optax.with_extra_args_support(arguments["base_optimizer"])
    rate = arguments["learning_rate"]

    def stock_around(
        init: Callable[..., Any], update: Callable[..., Any], rate: Any, dtype: Any
    ) -> Any:
        changed = {
            "base_optimizer": optax.GradientTransformationExtraArgs(init, update),
            "learning_rate": cast_hyperparameter(rate, dtype),
        }
        return stock(**{**arguments, **changed})

    def base_init(params: PyTree) -> PyTree:
        return promote_initial_state(base.update, base.init(params), params)

    def init_fn(params: PyTree) -> Any:
        statistics = statistics_dtype(params)
        # Stock keeps its statistics in the lowest dtype of the params, even in int32.
        wide = tree_map(
            lambda p: p if is_inexact(p) else cast(p, statistics), half_to_float32(params)
        )
        state = stock_around(lambda _: base_init(params), base.update, rate, statistics).init(wide)
        if arguments["state_dtype"] is None:
            state = state._replace(z=_like_inexact(state.z, params))
        # Without any leaf stock takes its default float, float64 in 64-bit mode.
        scalars = {name: cast(getattr(state, name), statistics) for name in STATISTICS}
        return strip_weak_type(state._replace(**scalars))

    def update_fn(
        grads: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None and leaves(grads):  # None is also a tree without leaves.
            return built.update(grads, state, params, **extra_args)  # type: ignore[no-any-return]

        def base_update(*_: Any, **extra_args: Any) -> tuple[PyTree, PyTree]:
            before = state.base_optimizer_state
            updates, after = base.update(grads, before, params, **extra_args)
            if same_dtypes(grads, params):
                after = cast_back(after, before)
            return half_to_float32(updates), after

        of_rate: list[Any] = []

        def noting_rate(count: Any) -> Any:
            value = rate(count)
            of_rate.extend(_strong(value))
            return value

        wide_state = state._replace(
            weight_sum=half_to_float32(state.weight_sum),
            max_lr=half_to_float32(state.max_lr),
            z=_z_for(state, params),
        )
        # A float64 rate makes updates float64, where gradients are.
        dtype = promoted(dtype_of(wide_state.max_lr), compute_dtype(grads))
        noted = noting_rate if in_old_release and callable(rate) else rate
        tx = stock_around(base.init, base_update, noted, dtype)
        updates, new_state = tx.update(grads, wide_state, half_to_float32(params), **extra_args)
        as_stocks = cast_updates(updates, state.z, params, requested=(*scalars, *of_rate))
        bounded = cast_updates(as_stocks, grads, params, requested=requested)
        target = state._replace(base_optimizer_state=new_state.base_optimizer_state)
        return bounded, cast_back(new_state, target)

    return rebuild(built, call_of(stock, args, kwargs), update_fn, init_fn)


def _strong(*values: Any) -> tuple[Any, ...]:
    """List the dtypes of those values that promote what they meet."""
    return tuple(dtype_of(v) for v in values if is_array(v) and not is_weak(v))


def pass_no_dtype(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Pass None for a ``state_dtype`` that the user did not give.

    ``schedule_free`` takes its default then, and can tell that the user did not ask for a dtype.
    """
    return stock(*args, **{"state_dtype": None, **kwargs})


def eval_params(stock: Stock, state: Any, params: PyTree) -> PyTree:
    """Evaluate in float32 arithmetic, then cast to stock's dtype: that of a param and its ``z``."""

    def stocks(leaf: Any, z: Any, param: Any) -> Any:
        return cast(leaf, promoted(dtype_of(z), dtype_of(param))) if is_half(param) else leaf

    return tree_map(stocks, _eval_in_float32(stock, state, params), state.z, params)


def eval_params_like_params(stock: Stock, state: Any, params: PyTree) -> PyTree:
    """Cast average params to the dtypes of the params: up to 0.2.3 ``z`` is float32 unasked."""
    return _like_inexact(_eval_in_float32(stock, state, params), params)


def _eval_in_float32(stock: Stock, state: Any, params: PyTree) -> PyTree:
    if not hasattr(state, "z"):
        return stock(state, params)  # Stock raises.
    return stock(
        state._replace(b1=half_to_float32(state.b1), z=_z_for(state, params)),
        half_to_float32(params),
    )


def _like_inexact(tree: PyTree, params: PyTree) -> PyTree:
    """Cast each leaf to the dtype of its param, unless the param is an integer."""
    return tree_map(
        lambda leaf, p: cast(leaf, dtype_of(p)) if is_inexact(p) else leaf, tree, params
    )


def _z_for(state: Any, params: PyTree) -> PyTree:
    """Cast ``z`` to float32 where the params are half precision.

    Elsewhere a ``z`` that ``state_dtype`` made narrower is used as in stock.
    """
    return tree_map(lambda z, p: half_to_float32(z) if is_half(p) else z, state.z, params)
