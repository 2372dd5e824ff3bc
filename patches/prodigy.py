"""prodigy: arrays in the params' dtypes, scalars in float32 or wider, never float64 by accident.

The algorithm is Prodigy, in its Adam form (Mishchenko and Defazio 2023, Prodigy: An Expeditiously
Adaptive Parameter-Free Learner, https://arxiv.org/abs/2306.06101), written here from the paper, in
stock's order of operations, so that float32 results have stock's bits.

Why stock fails: in 64-bit mode ``beta ** count`` of a Python float and an int32 array is float64,
and state and updates follow (up to 0.2.3). A distance d in bfloat16 does not move by less than
d/256 (from 0.2.4 on). And d is a quotient whose divisor, the sum of all gradients, is 0 as long as
the gradients are: 0/0 is nan, in every dtype and on every release. For complex params the distance
is the lexicographic maximum of complex quotients, and hardly grows. Here a complex leaf becomes a
pair of real ones.

Whether the first gradients are 0 is not known while a step is traced. So every prodigy counts as
changed in ``status()``.
"""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp

from .._contract.dtypes import (
    PyTree,
    cast,
    cast_back,
    cast_learning_rate,
    dtype_of,
    half_to_float32,
    is_half,
    leaves,
    safe_increment,
    same_structure,
    strip_weak_type,
    tree_map,
    unflatten_like,
)
from .._contract.jaxpr import equations
from .._contract.promotion import standard_promotion
from .._contract.updates import cast_updates
from .._contract.widths import statistics_dtype
from .._contract.x64 import is_x64, x64
from .._engine.patch import Patch, Stock
from .._tally import count
from ._support import reproduce as demo
from ._support.arguments import arguments_of
from ._support.rebuild import call_of, rebuild
from ._support.representation import complex_places, in_parts, joined

PATCH = Patch(
    "prodigy",
    summary="the distance estimate stalls in bfloat16 and is NaN after a zero gradient; float64 "
    "updates in 64-bit mode up to 0.2.3",
)

_INSTEAD = "own arithmetic"
_AVERAGES = ("exp_avg", "exp_avg_sq", "grad_sum")
_TREES = (*_AVERAGES, "params0")
_SCALARS = ("estim_lr", "numerator_weighted")


_MODULES = ("optax.contrib._prodigy", "optax.contrib.prodigy")
_KNOWN = frozenset(
    {
        *("learning_rate", "betas", "beta3", "eps"),
        *("estim_lr0", "estim_lr_coef", "weight_decay"),
    }
)


@PATCH.wraps("prodigy", _MODULES, ">=0.2.3", known_parameters=_KNOWN | {"safeguard_warmup"})
@PATCH.wraps("prodigy", _MODULES, "<0.2.3", known_parameters=_KNOWN)
def _prodigy(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace ``optax.contrib.prodigy``, with the arguments of the installed release.

    The state is stock's ``ProdigyState``. Its trees have the dtypes of the params, except float32
    for float16, where d g and its square are below the smallest number, and for integers.
    ``estim_lr`` and ``numerator_weighted`` are float32, or float64 if all params are. Updates are
    as wide as gradients and params. ``update`` raises ``ValueError`` without params.
    """
    built = stock(*args, **kwargs)  # Checks the arguments, and has the right type.
    arguments = arguments_of(stock, args, kwargs)

    def init_fn(params: PyTree) -> Any:
        import optax.contrib

        dtype = statistics_dtype(params)
        count(_INSTEAD)

        def zeros() -> PyTree:
            return tree_map(lambda p: jnp.zeros_like(p, dtype=_array_dtype(dtype_of(p))), params)

        return optax.contrib.ProdigyState(
            exp_avg=zeros(),
            exp_avg_sq=zeros(),
            grad_sum=zeros(),
            params0=strip_weak_type(params, numbers_too=True),
            estim_lr=jnp.asarray(arguments["estim_lr0"], dtype),
            numerator_weighted=jnp.zeros((), dtype),
            count=jnp.zeros((), jnp.int32),
        )

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        trees = {name: getattr(state, name) for name in _TREES}
        with_gradients = _with_gradients(params, updates)
        if params is None or not same_structure(updates, with_gradients, *trees.values()):
            return built.update(updates, state, params)  # type: ignore[no-any-return]  # It raises.
        import optax

        params = with_gradients
        count(_INSTEAD)
        del extra_args
        vdot = _widened_vdot if any(map(is_half, leaves(params))) else optax.tree_utils.tree_vdot
        places = complex_places(updates, params)
        grads, old, *kept = (
            half_to_float32(in_parts(tree, places)) for tree in (updates, params, *trees.values())
        )
        scalars = {name: _real(half_to_float32(getattr(state, name))) for name in _SCALARS}
        wide_state = state._replace(**dict(zip(trees, kept)), **scalars)
        with standard_promotion():
            new_updates, new_state = _step(arguments, vdot, grads, wide_state, old)

        new_trees = (
            unflatten_like(updates, joined(getattr(new_state, name))) for name in _AVERAGES
        )
        new_state = new_state._replace(params0=state.params0, **dict(zip(_AVERAGES, new_trees)))
        new_updates = unflatten_like(updates, joined(new_updates))
        return cast_updates(new_updates, updates, params), cast_back(new_state, state)

    return rebuild(built, call_of(stock, args, kwargs), update_fn, init_fn, also_in_float32=True)


def _with_gradients(params: PyTree, grads: PyTree) -> PyTree:
    """Leave out the params whose gradient is None, as stock does up to 0.2.3."""
    try:
        return tree_map(lambda g, p: g if g is None else p, grads, params, is_leaf=_is_none)
    except ValueError:  # The structures differ elsewhere too.
        return params


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _array_dtype(param: Any) -> Any:
    """Choose the dtype of a leaf of the state by the dtype of its param."""
    if param == jnp.float16 or not jnp.issubdtype(param, jnp.inexact):
        return jnp.float32
    return param


def _real(leaf: Any) -> Any:
    """Return the real part of a statistic; stock's are complex for complex params."""
    return jnp.real(leaf) if jnp.iscomplexobj(leaf) else leaf


def _widened_vdot(left: PyTree, right: PyTree) -> Any:
    """Compute the inner product of two trees in float32, where stock's is of half precision.

    With jaxlib 0.4.31 and 50 million params of one shape, a float32 ``dot`` ends the process on the
    CPU ("could not reshape a memory descriptor"). Stock's half-precision ``dot`` does not.
    """
    return sum(leaves(tree_map(lambda a, b: jnp.sum(jnp.conj(a) * b), left, right)))


def _step(
    arguments: dict[str, Any],
    vdot: Callable[[PyTree, PyTree], Any],
    grads: PyTree,
    state: Any,
    params: PyTree,
) -> tuple[PyTree, Any]:
    """Take one step of the paper's algorithm, in the dtypes of its arguments."""
    import optax

    def scalar(value: Any) -> Any:
        return cast_learning_rate(value, dtype_of(state.estim_lr))

    d, weight_decay = state.estim_lr, scalar(arguments["weight_decay"])
    beta1, beta2 = map(scalar, arguments["betas"])
    beta3 = beta2**0.5 if arguments["beta3"] is None else scalar(arguments["beta3"])
    d0, eps, d_coef = (scalar(arguments[name]) for name in ("estim_lr0", "eps", "estim_lr_coef"))
    rate = scalar(arguments["learning_rate"])
    if callable(rate):
        rate = rate(state.count)

    count = safe_increment(state.count)
    # In 64-bit mode a Python float and an int32 exponent make float64.
    powers = ((jnp.asarray(b, d.dtype) if is_x64() else b) ** count for b in (beta1, beta2))
    decay1, decay2 = powers
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


def _show(optax: Any, dtype: Any, *more: Any, wide: bool = False) -> str | None:
    prodigy = demo.public(optax, "contrib.prodigy")
    if not wide:
        return demo.one_step(prodigy(), demo.shapes(dtype, *more))
    with x64():
        return demo.one_step(prodigy(), demo.shapes(dtype, *more), inside=dtype != jnp.float64)


def _probe_zero_gradient(optax: Any) -> str | None:
    """Trace a quotient of two scalars whose divisor is not the result of a selection."""
    prodigy = demo.public(optax, "contrib.prodigy")
    tx, params = prodigy(), demo.shapes(jnp.float32)
    jaxpr = jax.make_jaxpr(lambda params: tx.update(params, tx.init(params), params))(params)
    makers: dict[Any, Any] = {}
    for equation in equations(jaxpr.jaxpr):
        makers.update((variable, equation) for variable in equation.outvars)
        if equation.primitive.name == "div" and equation.outvars[0].aval.shape == ():
            maker = makers.get(equation.invars[1])
            if maker is not None and maker.primitive.name in ("add", "reduce_sum"):
                return "the distance is divided by a sum of gradients, which may be 0"
    return None


@PATCH.fault(">=0.1.8,<0.2.4", issue=1051)
def float64(optax: Any) -> str | None:
    """float32 params in 64-bit mode: float64 in state and updates."""
    return _show(optax, jnp.float32, wide=True)


@PATCH.fault(">=0.1.8,<0.2.4", issue=1051)
def float64_params(optax: Any) -> str | None:
    """float64 params: the state changes from float32 to float64."""
    return _show(optax, jnp.float64, wide=True)


@PATCH.fault(">=0.1.8,<0.2.4", issue=1051)
def promoted_updates(optax: Any) -> str | None:
    """float32 updates for bfloat16 params."""
    return _show(optax, jnp.bfloat16)


@PATCH.fault(">=0.1.8", issue=1207)
def mixed_tree(optax: Any) -> str | None:
    """Leaves of different dtypes: the state changes dtype, or updates are promoted."""
    return _narrow(optax, jnp.bfloat16, jnp.float32) or _show(optax, jnp.bfloat16, jnp.float32)


@PATCH.fault(">=0.1.8,<0.2.4", issue=1051)
def wide_state(optax: Any) -> str | None:
    """Trees of the state are float32, whatever the params are."""
    prodigy = demo.public(optax, "contrib.prodigy")
    state = jax.eval_shape(prodigy().init, demo.shapes(jnp.bfloat16))
    found = state.grad_sum["w"].dtype
    return None if found == jnp.bfloat16 else f"grad_sum is {found} for bfloat16 params"


@PATCH.fault(">=0.2.4")
def narrow_scalars(optax: Any) -> str | None:
    """Distance estimates are kept in the lowest dtype of the params."""
    return _narrow(optax, jnp.bfloat16) or _narrow(optax, jnp.float32, jnp.int32)


def _narrow(optax: Any, *dtypes: Any) -> str | None:
    prodigy = demo.public(optax, "contrib.prodigy")
    found = jax.eval_shape(prodigy().init, demo.shapes(*dtypes)).estim_lr.dtype
    return None if found == jnp.float32 else f"estim_lr is {found}"


@PATCH.fault(">=0.1.8")
def complex_params(optax: Any) -> str | None:
    """Complex params make the distance estimate complex, and it hardly grows."""
    prodigy = demo.public(optax, "contrib.prodigy")
    dtype = jax.eval_shape(prodigy().init, demo.shapes(jnp.complex64)).estim_lr.dtype
    return _show(optax, jnp.complex64) or (None if dtype == jnp.float32 else f"estim_lr is {dtype}")


@PATCH.fault(">=0.1.8", abstract=False, probe=_probe_zero_gradient)
def zero_gradient(optax: Any) -> str | None:
    """Zero gradients in the first step: 0/0, NaN from then on."""
    prodigy = demo.public(optax, "contrib.prodigy")
    tx, params = prodigy(), demo.ones(jnp.float32)
    grads = tree_map(jnp.zeros_like, params)
    updates, state = jax.jit(lambda: tx.update(grads, tx.init(params), params))()
    if not bool(jnp.isfinite(updates["b"]).all() & jnp.isfinite(state.estim_lr)):
        return "a zero gradient in the first step gives nan updates"
    return None
