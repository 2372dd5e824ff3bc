"""promotion: state and updates are not promoted to a dtype that no input has.

Most optimizers multiply a leaf by a scalar of their own, and JAX promotes: an int32 leaf times a
float is float32, a bfloat16 leaf times a float32 array is float32, and under x64 the float64 of
``1 - step**-0.8`` makes everything float64. ``jax_numpy_dtype_promotion="strict"`` raises instead.
Where stock keeps the dtypes of its inputs, nothing is cast and the program is stock's.
"""

from __future__ import annotations

from typing import Any, Callable

import jax.numpy as jnp

from .._contract.dtypes import (
    PyTree,
    array_dtypes,
    cast,
    dtype_of,
    is_inexact,
    is_number,
    leaves,
    tree_map,
)
from .._contract.promotion import standard_promotion
from .._contract.updates import bound_of, requested_dtypes, update_dtypes
from .._contract.widths import real_dtype
from .._engine.patch import Patch, Stock
from ._support import modules
from ._support.arguments import arguments_of
from ._support.combine import combine
from ._support.deprecated import deprecated_attribute
from ._support.in_float32 import MOMENT_TRANSFORMS, with_params_cast_back
from ._support.keep_dtypes import KeepDtypes
from ._support.rebuild import FLOATS, call_of, in_place_of

PATCH = Patch(
    "promotion",
    summary="some 50 transformations promote integer leaves and mixed trees, or raise in strict "
    "promotion mode",
    allow_missing_targets=True,
)
PATCH.fault("integer_leaf", ">=0.1.2", issue=1207)
PATCH.fault("integer_chain", ">=0.1.4", issue=1207)
PATCH.fault("integer_gradients", ">=0.1.2")
PATCH.fault("mixed_leaves", ">=0.1.2", issue=1207)
PATCH.fault("promoted_bfloat16", "<0.2.4", issue=1207)
PATCH.fault("default_momentum", ">=0.1.2")
PATCH.fault("strict_promotion", ">=0.1.2")
PATCH.fault("strict_schedule", ">=0.1.2")
PATCH.fault("float64_inside", "<0.2.4", issue=1207)
PATCH.fault("long_counter", ">=0.2.5,<0.2.7", issue=1207)
PATCH.fault("integer_nesterov", ">=0.1.9")

_KEEP_DTYPES = KeepDtypes()


def _schedule(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function that builds a schedule; the other schedules are made of these."""
    schedule = stock(*args, **kwargs)

    def in_standard_promotion(*args: Any, **kwargs: Any) -> Any:
        with standard_promotion():
            return schedule(*args, **kwargs)

    return in_place_of(schedule, in_standard_promotion, call_of(stock, args, kwargs))


def _wrap(
    places: tuple[str, ...],
    releases: str,
    names: str,
    replacement: Callable[..., Any] = _KEEP_DTYPES,
) -> None:
    """Register one replacement for functions that are defined together."""
    for name in names.split():
        PATCH.wraps(name, places, releases)(replacement)


_IN_32_BITS = KeepDtypes(in_32_bits=True)
_IN_ONE_DTYPE = KeepDtypes(in_32_bits=True, in_one_dtype=True)
_IN_ONE_DTYPE_NO_INTEGERS = KeepDtypes(in_32_bits=True, in_one_dtype=True, no_integers=True)
_WITH_ANY_GRADIENTS = KeepDtypes(in_32_bits=True, in_one_dtype=True, any_gradients=True)


class _Lookahead(KeepDtypes):
    """Bound pairs of updates: params and updates of lookahead are fast and slow ones."""

    def _bound(
        self, updates: Any, grads: PyTree, params: PyTree, state: PyTree, requested: tuple[Any, ...]
    ) -> list[Any] | None:
        fast = update_dtypes(updates.fast, grads, params.fast, state, requested)
        slow = update_dtypes(updates.slow, grads, params.slow, state, requested)
        return None if fast is None or slow is None else fast + slow


class _Flatten(KeepDtypes):
    """Bound updates by the one vector that the state of flatten keeps for all params."""

    def _like_params(self, params: PyTree, state: PyTree, grads: PyTree) -> PyTree:
        like = super()._like_params(params, state, grads)
        if params is not None or like:
            return like
        flat = leaves(grads)
        return self._vectors(state, flat)[:1] * len(flat)

    def _bound(
        self,
        updates: PyTree,
        grads: PyTree,
        params: PyTree,
        state: PyTree,
        requested: tuple[Any, ...],
    ) -> list[Any] | None:
        kept = list(map(dtype_of, self._vectors(state, leaves(grads))))
        if params is not None:  # A vector in the common dtype does not tell the dtype of one param.
            widest = real_dtype(params)
            kept = [dtype for dtype in kept if jnp.finfo(dtype).bits > jnp.finfo(widest).bits]
        return bound_of(updates, grads, params, state, (*requested, *kept))

    def _vectors(self, state: PyTree, grads: list[Any]) -> list[Any]:
        size = sum(map(jnp.size, grads))
        found = (leaf for leaf in leaves(state) if is_number(leaf) and is_inexact(leaf))
        return [leaf for leaf in found if jnp.shape(leaf) == (size,)]


class _Counting(KeepDtypes):
    """Count in int32, where stock counts in int64 in 64-bit mode."""

    def _start(self, tx: Any, params: PyTree) -> PyTree:
        state = super()._start(tx, params)
        return state._replace(t=cast(state.t, jnp.int32))


class _Hessian(KeepDtypes):
    """An estimator of the Hessian, which differentiates ``obj_fn`` at the params.

    Stock draws its directions in one dtype for all leaves. Where params have several dtypes, stock
    is given params in one dtype, and ``obj_fn`` still gets the user's dtypes. Stock and ``obj_fn``
    run in the user's mode: in 32-bit mode stock would draw other directions.
    """

    def _extra_args(self, params: PyTree, extra_args: dict[str, Any]) -> dict[str, Any]:
        extra_args = super()._extra_args(params, extra_args)
        objective = extra_args.get("obj_fn")
        if objective is None:
            return extra_args
        return {**extra_args, "obj_fn": with_params_cast_back(params, objective)}

    def _needs_one_dtype(self, params: PyTree) -> bool:
        return len({dtype_of(leaf) for leaf in leaves(params)}) > 1


class _Sophia(KeepDtypes):
    """Replace the default estimator, which stock built when optax was imported.

    A user-defined estimator is left alone.
    """

    def __call__(self, stock: Stock, *args: Any, **kwargs: Any) -> Any:
        import optax.contrib

        arguments = arguments_of(stock, args, kwargs)
        estimator = arguments["hessian_diagonal_fn"]
        if estimator.update.__module__ == stock.__module__:
            arguments["hessian_diagonal_fn"] = optax.contrib.hutchinson_estimator_diag_hessian()
        return super().__call__(stock, **arguments)


@PATCH.wraps("tree_bias_correction", modules.TREE_MATH, ">=0.2.3")
@PATCH.wraps("bias_correction", modules.TRANSFORM, ">=0.1.9,<0.2.3")
def _bias_correction(stock: Stock, moment: PyTree, *args: Any, **kwargs: Any) -> PyTree:
    """Correct integers in float32: stock rounds the divisor to their dtype, and divides by 0.

    ``nadam`` corrects the gradients themselves.
    """
    if not FLOATS.issuperset(array_dtypes(moment) or (None,)):
        moment = tree_map(_float32_if_integer, moment)
    return stock(moment, *args, **kwargs)


def _float32_if_integer(leaf: Any) -> Any:
    return cast(leaf, jnp.float32) if jnp.issubdtype(dtype_of(leaf), jnp.integer) else leaf


@PATCH.wraps("adafactor", modules.ALIAS)
def _adafactor(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Bound the updates, which are the momentum: its dtype is float32 unasked."""
    tx = stock(*args, **kwargs)
    if arguments_of(stock, args, kwargs)["momentum"] is None:
        return tx
    requested = requested_dtypes(stock, args, kwargs)
    return _KEEP_DTYPES.wrap(tx, call_of(stock, args, kwargs), requested)


_HESSIAN = _Hessian(no_integers=True)
_NO_INTEGERS = KeepDtypes(no_integers=True)
_AROUND = KeepDtypes(around_another=True)

_wrap(
    modules.TRANSFORM,
    ">=0.1.2",
    "scale_by_trust_ratio scale_by_param_block_norm scale_by_param_block_rms apply_every"
    " centralize",
)
_wrap(modules.TRANSFORM, ">=0.1.2", "scale_by_schedule", _NO_INTEGERS)
_wrap(modules.TRANSFORM, ">=0.1.4", "scale_by_adamax")
_wrap(modules.TRANSFORM, ">=0.1.4", "scale_by_optimistic_gradient", _NO_INTEGERS)
_wrap(modules.TRANSFORM, ">=0.1.4,<0.2.4", "scale_by_novograd", _WITH_ANY_GRADIENTS)
_wrap(
    modules.TRANSFORM,
    ">=0.2.4",
    "scale_by_novograd",
    KeepDtypes(in_one_dtype=True, any_gradients=True),
)
_wrap(modules.TRANSFORM, ">=0.1.5", "scale_by_lion")
_wrap(modules.TRANSFORM, ">=0.1.8", "scale_by_distance_over_gradients", _IN_ONE_DTYPE)
_wrap(modules.TRANSFORM, ">=0.2.0", "scale_by_rprop", _IN_32_BITS)
_wrap(modules.TRANSFORM, ">=0.2.2", "scale_by_polyak")
_wrap(modules.TRANSFORM, ">=0.2.3", "normalize_by_update_norm")
_wrap(modules.TRANSFORM, "<0.2.4", "scale_by_radam scale_by_sm3", _IN_ONE_DTYPE)
_wrap(modules.TRANSFORM, ">=0.2.4", "scale_by_radam scale_by_sm3")
_wrap(modules.FACTORIZED, "<0.2.4", "scale_by_factored_rms", _IN_ONE_DTYPE)
_wrap(modules.FACTORIZED, ">=0.2.4", "scale_by_factored_rms")
_wrap(modules.COMBINING, ">=0.1.2", "chain", combine)
_wrap(modules.COMBINING, ">=0.1.8", "named_chain", combine)
_wrap(modules.COMBINING, "<0.2.3", "multi_transform", combine)
_wrap(modules.COMBINING, ">=0.2.3", "partition", combine)
_wrap(modules.MASKING, ">=0.1.2", "masked", combine)
_wrap(modules.CLIPPING, ">=0.1.2", "clip clip_by_block_rms adaptive_grad_clip")
_wrap(modules.CLIPPING, ">=0.1.2", "clip_by_global_norm", _NO_INTEGERS)
_wrap(modules.ADDING, "!=0.2.3", "add_noise", _NO_INTEGERS)
_wrap(modules.ADDING, "==0.2.3", "add_noise", KeepDtypes(in_32_bits=True, no_integers=True))
_wrap(modules.contrib("privacy"), ">=0.1.2", "differentially_private_aggregate")
_wrap(modules.ACCUMULATION, ">=0.1.2", "trace ema")
_wrap(modules.LAYOUTS, ">=0.1.2", "flatten", _Flatten())
_wrap(modules.LOOKAHEAD, ">=0.1.2", "lookahead", _Lookahead())
_wrap(modules.MONITORING, ">=0.2.7", "measure_with_ema")
_wrap(modules.contrib("sam"), ">=0.1.8", "sam", _AROUND)
_wrap(modules.contrib("sam"), ">=0.1.8", "normalize")
_wrap(modules.contrib("complex_valued"), ">=0.1.8", "split_real_and_imaginary", _AROUND)
# Its gradients are updates of another transformation: floats for an integer param too.
_wrap(modules.contrib("cocob"), ">=0.1.8,<0.2.3", "cocob", _IN_ONE_DTYPE_NO_INTEGERS)
_wrap(modules.contrib("cocob"), "==0.2.3", "scale_by_cocob", _IN_ONE_DTYPE_NO_INTEGERS)
_wrap(modules.contrib("cocob"), ">=0.2.4", "scale_by_cocob", _NO_INTEGERS)
_wrap(modules.contrib("ademamix"), ">=0.2.5,<0.2.7", "scale_by_simplified_ademamix", _Counting())
_wrap(modules.contrib("ademamix"), ">=0.2.7", "scale_by_simplified_ademamix")
_wrap(modules.contrib("muon"), ">=0.2.5", "scale_by_muon", _IN_32_BITS)
_wrap(modules.contrib("muon"), ">=0.2.7", "scale_by_shape")
_wrap(
    modules.SCHEDULES,
    ">=0.1.2",
    "polynomial_schedule piecewise_constant_schedule exponential_decay cosine_decay_schedule"
    " piecewise_interpolate_schedule join_schedules",
    _schedule,
)
_wrap(modules.contrib("sophia"), ">=0.2.5", "hutchinson_estimator_diag_hessian", _HESSIAN)
_wrap(modules.contrib("sophia"), ">=0.2.5", "scale_by_sophia", _Sophia(no_integers=True))
_wrap(modules.contrib("galore"), ">=0.2.7", "scale_by_galore", KeepDtypes(any_gradients=True))

_special = {target.qualname for target in PATCH.targets}
for _transform in MOMENT_TRANSFORMS:
    if _transform.name not in _special:
        _wrap(_transform.modules, _transform.releases, _transform.name)


@PATCH.wraps("__getattr__", ("optax",), ">=0.2.3")
def _deprecated_name(stock: Stock, name: str) -> Any:
    """Rebuild a deprecated name, from 0.2.3 on."""
    import optax.contrib

    found = deprecated_attribute(stock, "optax", name)
    if name == "differentially_private_aggregate":
        return optax.contrib.differentially_private_aggregate
    return found
