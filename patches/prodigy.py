"""prodigy: averages in stock's dtypes, scalars in float32 or wider, never float64 by accident.

The algorithm is Prodigy, in its Adam form (Mishchenko and Defazio 2023, Prodigy: An Expeditiously
Adaptive Parameter-Free Learner, https://arxiv.org/abs/2306.06101), written here from the paper, in
stock's order of operations, so that float32 results have stock's bits.

Why stock fails: in 64-bit mode ``beta ** count`` of a Python float and an int32 array is float64,
and state and updates follow (up to 0.2.3). A distance d in bfloat16 does not move by less than
d/256 (from 0.2.4 on). And d is a quotient whose divisor, the sum of all gradients, is 0 as long as
the gradients are: 0/0 is nan, in every dtype and on every release. For complex params the distance
is the lexicographic maximum of complex quotients, and hardly grows. Here a complex leaf becomes a
pair of real ones.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax.numpy as jnp

from .._contract.dtypes import (
    PyTree,
    cast,
    is_half,
    leaves,
    safe_increment,
    same_structure,
    strip_weak_type,
    tree_map,
)
from .._contract.promotion import standard_promotion
from .._contract.state import cast_back
from .._contract.updates import cast_updates
from .._contract.widths import statistics_dtype
from .._contract.x64 import is_x64
from .._engine.patch import Stock
from ._support.arguments import arguments_of
from ._support.float32 import cast_hyperparameter, half_to_float32
from ._support.rebuild import call_of, rebuild
from ._support.representation import Representation, average_dtype
from ._support.stock_dtypes import replace_user_code, start_as_stock

_AVERAGES = ("exp_avg", "exp_avg_sq", "grad_sum")
_TREES = (*_AVERAGES, "params0")
_SCALARS = ("estim_lr", "numerator_weighted")


def replace(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace ``optax.contrib.prodigy``, with the arguments of the installed release.

    The state is stock's ``ProdigyState``. Its averages have stock's dtypes after two steps, but no
    float64 by accident. They are float32 for float16 params, where d g and its square are below the
    smallest number, and for integers.
    ``estim_lr`` and ``numerator_weighted`` are float32, or float64 if all params are. Updates are
    as wide as gradients and params. ``update`` raises ``ValueError`` without params.
    """
    built = stock(*args, **kwargs)  # Checks the arguments, and has the right type.
    arguments = arguments_of(stock, args, kwargs)
    known = functools.partial(stock, **replace_user_code(arguments))

    def init_fn(params: PyTree) -> Any:
        import optax.contrib

        state = optax.contrib.ProdigyState(
            **{
                name: tree_map(lambda p: jnp.zeros_like(p, dtype=average_dtype(p)), params)
                for name in _AVERAGES
            },
            params0=strip_weak_type(params, numbers_too=True),
            estim_lr=jnp.asarray(arguments["estim_lr0"], statistics_dtype(params)),
            numerator_weighted=jnp.zeros((), statistics_dtype(params)),
            count=jnp.zeros((), jnp.int32),
        )
        return start_as_stock(known(), state, params)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        trees = {name: getattr(state, name) for name in _TREES}
        kept = _leave_out_frozen(params, updates)
        if params is None or not same_structure(updates, kept, *trees.values()):
            return built.update(updates, state, params)  # type: ignore[no-any-return]  # It raises.
        import optax

        del extra_args
        problem = Representation.of(None, updates, kept, *trees.values())
        lists = {name: problem.to_list(tree) for name, tree in trees.items()}
        # The scalars of stock are complex for complex params.
        scalars = {name: half_to_float32(jnp.real(getattr(state, name))) for name in _SCALARS}
        vdot = _widened_vdot if any(map(is_half, leaves(kept))) else optax.tree_utils.tree_vdot
        with standard_promotion():
            new_updates, new_state = _step(
                arguments,
                vdot,
                problem.to_list(updates),
                state._replace(**lists, **scalars),
                problem.to_list(kept),
            )
        averages = {name: problem.to_tree(getattr(new_state, name), updates) for name in _AVERAGES}
        new_state = new_state._replace(**averages, params0=state.params0)
        new_updates = problem.to_tree(new_updates, updates)
        return cast_updates(new_updates, updates, kept), cast_back(new_state, state)

    return rebuild(built, call_of(stock, args, kwargs), update_fn, init_fn, also_in_float32=True)


def _leave_out_frozen(params: PyTree, grads: PyTree) -> PyTree:
    """Leave out the params whose gradient is None, as stock does up to 0.2.3."""
    try:
        return tree_map(
            lambda g, p: g if g is None else p, grads, params, is_leaf=lambda leaf: leaf is None
        )
    except ValueError:  # The structures differ elsewhere too.
        return params


def _widened_vdot(left: PyTree, right: PyTree) -> Any:
    """Compute the inner product of two trees in float32, where stock's is of half precision.

    With jaxlib 0.4.31 and 50 million params of one shape, a float32 ``dot`` ends the process on the
    CPU ("could not reshape a memory descriptor"). Stock's half-precision ``dot`` does not.
    """
    return sum(leaves(tree_map(lambda a, b: jnp.sum(a * b), left, right)))


def _step(
    arguments: dict[str, Any],
    vdot: Callable[[PyTree, PyTree], Any],
    grads: PyTree,
    state: Any,
    params: PyTree,
) -> tuple[PyTree, Any]:
    """Take one step of the paper's algorithm, in the dtypes of its arguments."""
    import optax

    d, scalar = state.estim_lr, functools.partial(cast_hyperparameter, dtype=state.estim_lr.dtype)
    beta1, beta2 = map(scalar, arguments["betas"])
    beta3 = beta2**0.5 if arguments["beta3"] is None else scalar(arguments["beta3"])
    names = ("learning_rate", "estim_lr0", "estim_lr_coef", "eps", "weight_decay")
    rate, d0, d_coef, eps, weight_decay = (scalar(arguments[name]) for name in names)
    if callable(rate):
        rate = rate(state.count)

    count = safe_increment(state.count)
    # In 64-bit mode a Python float and an int32 exponent make float64.
    decay1, decay2 = ((jnp.asarray(b, d.dtype) if is_x64() else b) ** count for b in (beta1, beta2))
    bias_correction = (1 - decay2) ** 0.5 / (1 - decay1)
    step_size = d * rate * bias_correction
    sum_size = d if arguments.get("safeguard_warmup", False) else step_size

    dg = tree_map(lambda g: d * g, grads)
    to_start = tree_map(lambda p0, p: p0 - p, state.params0, params)
    exp_avg = tree_map(lambda m, u: beta1 * m + (1 - beta1) * u, state.exp_avg, dg)
    exp_avg_sq = tree_map(lambda v, u: beta2 * v + (1 - beta2) * u * u, state.exp_avg_sq, dg)
    grad_sum = tree_map(lambda s, u: beta3 * s + sum_size * u / d0, state.grad_sum, dg)

    progress = cast(vdot(grads, to_start), d.dtype)
    numerator = beta3 * state.numerator_weighted + d / d0 * step_size * progress
    divisor = cast(optax.tree_utils.tree_sum(tree_map(jnp.abs, grad_sum)), d.dtype)
    # While all gradients are 0, the numerator is 0 too, and there is no estimate yet.
    estimate = d_coef * numerator / jnp.where(divisor == 0, jnp.ones_like(divisor), divisor)
    new_d = jnp.maximum(d, estimate)

    updates = tree_map(
        lambda m, v, p: -weight_decay * step_size * p - step_size * m / (jnp.sqrt(v) + new_d * eps),
        exp_avg,
        exp_avg_sq,
        params,
    )
    new_state = state._replace(
        exp_avg=exp_avg,
        exp_avg_sq=exp_avg_sq,
        grad_sum=grad_sum,
        estim_lr=new_d,
        numerator_weighted=numerator,
        count=count,
    )
    return updates, new_state
