"""promotion: transformations whose state or updates promote to a dtype that nobody brought.

Most optimizers multiply a leaf with a scalar of their own, and JAX promotes: an int32 leaf times a
float is float32, a bfloat16 leaf times a float32 array is float32, and under x64 the float64 of
``1 - step**-0.8`` turns all into float64. ``jax_numpy_dtype_promotion="strict"`` refuses instead.
Where stock agrees with the dtypes that it is given, nothing is cast, and the program is stock's.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp

from optax_dtypefix._dtypes import (
    PyTree,
    cast,
    dtype_of,
    is_inexact,
    is_number,
    leaves,
    x64,
)
from optax_dtypefix._patch import Fault, Patch, Target
from optax_dtypefix._updates import cast_updates
from optax_dtypefix.patches import _demonstrate as demo
from optax_dtypefix.patches._deprecated import look_up
from optax_dtypefix.patches._hyperparameters import arguments_of
from optax_dtypefix.patches._moments import at_params_like
from optax_dtypefix.patches._representation import real_dtype
from optax_dtypefix.patches._steady import Steady, standard_promotion

if TYPE_CHECKING:
    from collections.abc import Iterator


_HELD = Steady()


def _schedule(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of a function that builds a schedule; the other schedules are made of these."""
    schedule = stock(*args, **kwargs)

    @functools.wraps(schedule)
    def in_standard_promotion(count: Any) -> Any:
        with standard_promotion():
            return schedule(count)

    return in_standard_promotion


@dataclasses.dataclass(frozen=True)
class _Row:
    """Functions that are defined together and need the same."""

    modules: tuple[str, ...]
    releases: str
    names: str
    replacement: Callable[..., Any] = _HELD

    def targets(self) -> Iterator[Target]:
        for name in self.names.split():
            yield Target(self.modules, name, self.replacement, self.releases)


_TRANSFORM = ("optax._src.transform",)
_CLIPPING = ("optax.transforms._clipping", "optax._src.clipping")
_ADDING = ("optax.transforms._adding", "optax._src.transform")
_ACCUMULATION = ("optax.transforms._accumulation", "optax._src.transform")
_PRIVACY = ("optax.contrib._privacy", "optax.contrib.privacy", "optax._src.privacy")
_LAYOUTS = ("optax.transforms._layouts", "optax._src.wrappers")
_SAM = ("optax.contrib._sam", "optax.contrib.sam")
_ADEMAMIX = ("optax.contrib._ademamix",)
_MUON = ("optax.contrib._muon",)
_COCOB = ("optax.contrib._cocob", "optax.contrib.cocob")
_SCHEDULES = ("optax.schedules._schedule", "optax._src.schedule")
_JOIN = ("optax.schedules._join", "optax._src.schedule")
_COMPLEX = ("optax.contrib._complex_valued", "optax.contrib.complex_valued")

_IN_32_BITS = Steady(in_32_bits=True)
_IN_ONE_DTYPE = Steady(in_32_bits=True, in_one_dtype=True)
_WITH_ANY_GRADIENTS = Steady(in_32_bits=True, in_one_dtype=True, any_gradients=True)


class _Lookahead(Steady):
    """Its params and updates are pairs: the fast ones and the slow ones."""

    def _bound(
        self,
        updates: Any,
        grads: PyTree,
        params: PyTree,
        state: PyTree,
        asked: tuple[Any, ...],
    ) -> Any:
        fast = cast_updates(updates.fast, grads, params.fast, state, asked)
        slow = cast_updates(updates.slow, grads, params.slow, state, asked)
        return updates._replace(fast=fast, slow=slow)


class _Flatten(Steady):
    """Its state keeps one vector for all params."""

    def _like_params(self, params: PyTree, state: PyTree, grads: PyTree) -> list[Any]:
        like = super()._like_params(params, state, grads)
        flat = leaves(grads)
        return like or self._vectors(state, flat)[:1] * len(flat)

    def _bound(
        self,
        updates: PyTree,
        grads: PyTree,
        params: PyTree,
        state: PyTree,
        asked: tuple[Any, ...],
    ) -> PyTree:
        kept = list(map(dtype_of, self._vectors(state, leaves(grads))))
        if params is not None:  # A vector in their common dtype says nothing of a single one.
            widest = real_dtype(params)
            kept = [dtype for dtype in kept if jnp.finfo(dtype).bits > jnp.finfo(widest).bits]
        return cast_updates(updates, grads, params, None, (*asked, *kept))

    def _vectors(self, state: PyTree, grads: list[Any]) -> list[Any]:
        size = sum(map(jnp.size, grads))
        found = (leaf for leaf in leaves(state) if is_number(leaf) and is_inexact(leaf))
        return [leaf for leaf in found if jnp.shape(leaf) == (size,)]


class _Counting(Steady):
    """Its counter is int64 in 64-bit mode."""

    def _start(self, tx: Any, params: PyTree) -> PyTree:
        state = super()._start(tx, params)
        return state._replace(t=cast(state.t, jnp.int32))


class _Hessian(Steady):
    """An estimator of the Hessian, which differentiates ``obj_fn`` at the params.

    It draws its directions in one dtype for all leaves. Where the params have several, it works on
    params in one dtype, and the objective is still given those of the user. In 32-bit mode stock
    draws other directions, and the objective is the user's: both stay in the user's mode.
    """

    def _extra_args(self, params: PyTree, extra_args: dict[str, Any]) -> dict[str, Any]:
        extra_args = super()._extra_args(params, extra_args)
        objective = extra_args.get("obj_fn")
        if objective is None:
            return extra_args
        return {**extra_args, "obj_fn": at_params_like(params, objective)}

    def _needs_one_dtype(self, params: PyTree) -> bool:
        return len({dtype_of(leaf) for leaf in leaves(params)}) > 1


class _Sophia(Steady):
    """Its default estimator was built when optax was imported, by stock's function.

    One of the user's own is left as it is.
    """

    def __call__(self, stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        arguments = arguments_of(stock, args, kwargs)
        estimator = arguments["hessian_diagonal_fn"]
        if estimator.update.__module__ == stock.__module__:
            arguments["hessian_diagonal_fn"] = _HESSIAN.hold(estimator)
        return super().__call__(stock, **arguments)


_HESSIAN = _Hessian(no_integers=True)
_NO_INTEGERS = Steady(no_integers=True)
_AROUND = Steady(wraps=True)

_ROWS = (
    _Row(
        _TRANSFORM,
        ">=0.1.2",
        "scale_by_adam scale_by_belief scale_by_yogi scale_by_rms scale_by_rss scale_by_stddev"
        " scale_by_trust_ratio scale_by_param_block_norm scale_by_param_block_rms apply_every"
        " centralize",
    ),
    _Row(_TRANSFORM, ">=0.1.2", "scale_by_schedule", _NO_INTEGERS),
    _Row(_TRANSFORM, ">=0.1.4", "scale_by_adamax scale_by_amsgrad scale_by_optimistic_gradient"),
    _Row(_TRANSFORM, ">=0.1.4,<0.2.4", "scale_by_novograd", _WITH_ANY_GRADIENTS),
    _Row(
        _TRANSFORM,
        ">=0.2.4",
        "scale_by_novograd",
        Steady(in_one_dtype=True, any_gradients=True),
    ),
    _Row(_TRANSFORM, ">=0.1.5", "scale_by_lion"),
    _Row(_TRANSFORM, ">=0.1.8", "scale_by_distance_over_gradients", _IN_ONE_DTYPE),
    _Row(_TRANSFORM, ">=0.2.0", "scale_by_adadelta"),
    _Row(_TRANSFORM, ">=0.2.0", "scale_by_rprop", _IN_32_BITS),
    _Row(_TRANSFORM, ">=0.2.2", "scale_by_polyak"),
    _Row(_TRANSFORM, ">=0.2.3", "normalize_by_update_norm"),
    _Row(_TRANSFORM, ">=0.2.4", "scale_by_adan"),
    _Row(_TRANSFORM, "<0.2.4", "scale_by_radam scale_by_sm3", _IN_ONE_DTYPE),
    _Row(_TRANSFORM, ">=0.2.4", "scale_by_radam scale_by_sm3"),
    _Row(("optax._src.factorized",), "<0.2.4", "scale_by_factored_rms", _IN_ONE_DTYPE),
    _Row(("optax._src.factorized",), ">=0.2.4", "scale_by_factored_rms"),
    _Row(_CLIPPING, ">=0.1.2", "clip clip_by_block_rms adaptive_grad_clip"),
    _Row(_CLIPPING, ">=0.1.2", "clip_by_global_norm", _NO_INTEGERS),
    _Row(_ADDING, "!=0.2.3", "add_noise", _NO_INTEGERS),
    _Row(_ADDING, "==0.2.3", "add_noise", Steady(in_32_bits=True, no_integers=True)),
    _Row(_PRIVACY, ">=0.1.2", "differentially_private_aggregate"),
    _Row(_ACCUMULATION, ">=0.1.2", "trace ema"),
    _Row(_LAYOUTS, ">=0.1.2", "flatten", _Flatten()),
    _Row(("optax._src.lookahead",), ">=0.1.2", "lookahead", _Lookahead()),
    _Row(("optax.transforms._monitoring",), ">=0.2.7", "measure_with_ema"),
    _Row(_SAM, ">=0.1.8", "sam", _AROUND),
    _Row(_SAM, ">=0.1.8", "normalize"),
    _Row(_COMPLEX, ">=0.1.8", "split_real_and_imaginary", _AROUND),
    _Row(_COCOB, ">=0.1.8,<0.2.3", "cocob", _IN_ONE_DTYPE),
    _Row(_COCOB, "==0.2.3", "scale_by_cocob", _IN_ONE_DTYPE),
    _Row(_COCOB, ">=0.2.4", "scale_by_cocob"),
    _Row(("optax.contrib._acprop",), ">=0.2.3", "scale_by_acprop"),
    _Row(_ADEMAMIX, ">=0.2.5", "scale_by_ademamix"),
    _Row(_ADEMAMIX, ">=0.2.5,<0.2.7", "scale_by_simplified_ademamix", _Counting()),
    _Row(_ADEMAMIX, ">=0.2.7", "scale_by_simplified_ademamix"),
    _Row(("optax.contrib._adopt",), ">=0.2.5", "scale_by_adopt"),
    _Row(_MUON, ">=0.2.5", "scale_by_muon", _IN_32_BITS),
    _Row(_MUON, ">=0.2.7", "scale_by_shape"),
    _Row(_SCHEDULES, ">=0.1.2", "polynomial_schedule piecewise_constant_schedule", _schedule),
    _Row(_SCHEDULES, ">=0.1.2", "exponential_decay cosine_decay_schedule", _schedule),
    _Row(_SCHEDULES, ">=0.1.2", "piecewise_interpolate_schedule", _schedule),
    _Row(_JOIN, ">=0.1.2", "join_schedules", _schedule),
    _Row(("optax.contrib._sophia",), ">=0.2.5", "hutchinson_estimator_diag_hessian", _HESSIAN),
    _Row(("optax.contrib._sophia",), ">=0.2.5", "scale_by_sophia", _Sophia(no_integers=True)),
    _Row(("optax.contrib._galore",), ">=0.2.7", "scale_by_galore", Steady(any_gradients=True)),
    _Row(("optax.contrib._madgrad",), ">=0.2.7", "scale_by_madgrad"),
)


def _show_integer_leaf() -> str | None:
    import optax

    return demo.one_step(optax.scale_by_adam(), demo.shapes(jnp.float32, jnp.int32))


def _show_integer_gradients() -> str | None:
    import optax

    tx = optax.scale_by_schedule(lambda _: 0.1)
    return demo.one_step(tx, demo.shapes(jnp.float32), demo.shapes(jnp.int8))


def _show_mixed_leaves() -> str | None:
    import optax

    return demo.one_step(optax.flatten(optax.sgd(0.1)), demo.shapes(jnp.bfloat16, jnp.float32))


def _show_promoted_bfloat16() -> str | None:
    import optax

    for tx in (optax.scale_by_factored_rms(), optax.scale_by_sm3()):
        found = demo.one_step(tx, demo.shapes(jnp.bfloat16))
        if found is not None:
            return found
    return None


def _show_strict_promotion() -> str | None:
    import optax

    with jax.numpy_dtype_promotion("strict"):
        return demo.one_step(optax.scale_by_adam(), demo.shapes(jnp.float32))


def _show_strict_schedule() -> str | None:
    import optax

    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)
    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(schedule, jax.ShapeDtypeStruct((), jnp.int32))
    return None


def _show_float64_inside() -> str | None:
    import optax

    with x64():
        shapes = demo.shapes(jnp.float32)
        return demo.one_step(optax.scale_by_factored_rms(), shapes, inside=True)


def _show_long_counter() -> str | None:
    build = demo.contrib("scale_by_simplified_ademamix")
    with x64():
        return None if build is None else demo.one_step(build(), demo.shapes(jnp.float64))


def _deprecated_name(stock: Callable[..., Any], name: str) -> Any:
    """From 0.2.3 on."""
    import optax.contrib

    found = look_up(stock, "optax", name)
    if name == "differentially_private_aggregate":
        return optax.contrib.differentially_private_aggregate
    return found


def _targets() -> Iterator[Target]:
    for row in _ROWS:
        yield from row.targets()
    yield Target(("optax",), "__getattr__", _deprecated_name, ">=0.2.3")


_DTYPES = "https://github.com/google-deepmind/optax/issues/1207"

PATCH = Patch(
    id="promotion",
    summary=(
        "some 50 transformations: the state of integer leaves turns into float32, leaves of mixed "
        "trees are promoted, strict dtype promotion raises, in schedules too; adafactor, sm3, "
        "novograd, radam and others promote bfloat16, and float32 under x64 (up to 0.2.3)"
    ),
    independent=True,
    faults=(
        # mu = b1 * mu + (1 - b1) * g: an int32 times a Python float is float32.
        Fault(
            "integer_leaf",
            "what the state keeps of an integer leaf turns into float32 in the first step",
            ">=0.1.2",
            _show_integer_leaf,
            _DTYPES,
        ),
        # The rate is cast to the dtype of the gradient: 0.1 is 0 in int8.
        Fault(
            "integer_gradients",
            "a schedule as learning rate makes every update for an int8 gradient 0",
            ">=0.1.2",
            _show_integer_gradients,
        ),
        # One flat vector for all leaves has the widest dtype of them.
        Fault(
            "mixed_leaves",
            "bfloat16 leaves beside float32 ones get float32 updates",
            ">=0.1.2",
            _show_mixed_leaves,
            _DTYPES,
        ),
        Fault(
            "promoted_bfloat16",
            "bfloat16 params get float32 state or updates from adafactor, sm3, radam, novograd",
            "<0.2.4",
            _show_promoted_bfloat16,
            _DTYPES,
        ),
        # 1 - decay**count: strict mode has no common dtype for a float and an int32.
        Fault(
            "strict_promotion",
            "strict dtype promotion raises TypePromotionError inside optax",
            ">=0.1.2",
            _show_strict_promotion,
        ),
        # count / float(decay_steps): as above.
        Fault(
            "strict_schedule",
            "strict dtype promotion raises TypePromotionError in cosine, warm-up and others",
            ">=0.1.2",
            _show_strict_schedule,
        ),
        # 1 - step**-0.8 is a strong float64 where step is an int32 under x64.
        Fault(
            "float64_inside",
            "float32 params are computed with in float64 under x64",
            "<0.2.4",
            _show_float64_inside,
            _DTYPES,
        ),
        Fault(
            "long_counter",
            "simplified_ademamix counts in int64 under x64, which no input has",
            ">=0.2.5,<0.2.7",
            _show_long_counter,
            _DTYPES,
        ),
    ),
    targets=tuple(_targets()),
)
