"""multi_steps: MultiSteps runs with any dtypes, and keeps those of the inner transformation.

Stock ``MultiSteps.update`` builds two or three branches of ``lax.cond`` and trusts that they agree.
They agree if, for each leaf, gradient, accumulator and inner update share a dtype (from 0.2.8 on,
if the accumulators do). So stock runs just that way: its inputs are cast, and its outputs are cast
back. The inner transformation sees the dtypes that stock would show it. Its state keeps its dtypes.
Its updates are returned unchanged unless they are wider than gradients and params. Where all dtypes
agree already, nothing is cast and the program is stock's.

Integers and half precision are accumulated in float32, as optax does with half precision from 0.2.8
on: in bfloat16, 256 + 1 is 256. A state with narrower accumulators, from a checkpoint, keeps them.

Stock is given lists of leaves, because stock builds trees of ``jax.ShapeDtypeStruct``, which a
user-defined pytree node need not accept.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import weakref
from typing import Any, Callable

import jax
import jax.numpy as jnp

from .._contract.dtypes import (
    REAL,
    PyTree,
    cast,
    cast_back,
    dtype_of,
    is_weak,
    kind_of,
    leaves,
    same_structure,
    strip_weak_type,
    tree_map,
)
from .._contract.kinds import start_in_kind
from .._contract.updates import cast_updates, kept_like
from .._contract.x64 import x64
from .._engine.patch import Patch, Stock
from .._tally import count, counting
from ._support import reproduce as demo
from ._support.branches import fit, in_agreement, promoted
from ._support.keep_dtypes import standard_promotion
from ._support.seen import SeenParams

_LAYOUTS = ("optax.transforms._accumulation", "optax._src.wrappers")

PATCH = Patch(
    "multi_steps",
    summary="`MultiSteps` raises `TypeError` or changes dtypes if the inner optimizer changes a "
    "dtype; up to 0.2.7 its sums of bfloat16 gradients stop growing; 0.2.8 loses imaginary parts "
    "and float64 digits",
)


@PATCH.wraps("MultiSteps.init", _LAYOUTS)
def _init(stock: Stock, self: Any, params: PyTree) -> Any:
    """Run stock without weak types, with accumulators that are wide enough for their gradients."""
    state = stock(self, params)
    _seen_by(self).add(params)

    def inner_update(grads: PyTree, *args: PyTree) -> Any:
        return self._opt.update(tree_map(_in_float, grads), *args)

    inner_state = start_in_kind(inner_update, state.inner_opt_state, params)
    asked = getattr(self, "_accumulator_dtype", jnp.float32)  # An argument from 0.2.8 on.
    acc_grads = tree_map(
        lambda acc, param: cast(acc, _accumulator_dtype(asked, dtype_of(param))),
        state.acc_grads,
        params,
    )
    return strip_weak_type(state._replace(inner_opt_state=inner_state, acc_grads=acc_grads))


def _accumulator_dtype(asked: Any, param: Any) -> Any:
    """Choose the dtype of an accumulator by ``accumulator_dtype`` and the dtype of the param.

    float32, the default, means "no half precision": it must not narrow float64. A complex leaf
    needs a complex accumulator whatever was asked.
    """
    if asked is None:
        return _float_dtype(param)
    if jnp.issubdtype(param, jnp.complexfloating) or asked == jnp.float32:
        return promoted(asked, param)
    return _float_dtype(asked)


def _float_dtype(dtype: Any) -> Any:
    """Choose float32 in place of an integer dtype: a mean of integers is a float."""
    return jnp.dtype(jnp.float32) if 0 <= kind_of(dtype) < REAL else dtype


def _in_float(leaf: Any) -> Any:
    return cast(leaf, _float_dtype(dtype_of(leaf)))


@PATCH.wraps("MultiSteps.update", _LAYOUTS, "<0.1.5")
@PATCH.wraps("MultiSteps.update", _LAYOUTS, ">=0.1.8,<0.2.8,!=0.2.4")
def _update(
    stock: Stock, self: Any, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
) -> tuple[PyTree, Any]:
    """Up to 0.2.7, give stock one dtype for a gradient, its accumulator and its update."""
    if not same_structure(updates, state.acc_grads):
        return stock(self, updates, state, params, **extra_args)  # type: ignore[no-any-return]
    # Stock shows the inner transformation the promoted dtype of gradient and accumulator, which has
    # the dtype of the param.
    shown = _accumulated(updates, _params_like(self, updates, state, params))
    needed = map(promoted, shown, _accumulated(updates, leaves(state.acc_grads)))

    def run(dtypes: list[Any]) -> tuple[PyTree, Any]:
        patched_copy = _PatchedCopy(self, updates, state, params, extra_args, shown, dtypes)
        return patched_copy.run(stock, dtypes, dtypes)

    with standard_promotion():
        return in_agreement(run, list(needed))


def _params_like(multi_steps: Any, grads: PyTree, state: Any, params: PyTree) -> list[Any]:
    """List the params, or what has their dtypes: moments of the inner transformation, if any."""
    if params is not None and same_structure(grads, params):
        return leaves(params)
    moments = kept_like(state.inner_opt_state, grads)
    return next(iter(moments), None) or _seen_by(multi_steps).like(grads)


_SEEN: weakref.WeakKeyDictionary[Any, SeenParams] = weakref.WeakKeyDictionary()


def _seen_by(multi_steps: Any) -> SeenParams:
    try:
        return _SEEN.setdefault(multi_steps, SeenParams())
    except TypeError:  # A subclass without a hash.
        return SeenParams()


@PATCH.wraps("MultiSteps.update", _LAYOUTS, ">=0.1.5,<0.1.8")
@PATCH.wraps("MultiSteps.update", _LAYOUTS, "==0.2.4")
def _update_with_arguments(stock: Stock, *args: Any, **kwargs: Any) -> tuple[PyTree, Any]:
    """Do as :func:`_update` where stock loses extra arguments, or raises."""
    known = inspect.signature(_update).parameters
    count("extra argument passed on", len(kwargs.keys() - known.keys()))
    return _update(stock, *args, **kwargs)


@PATCH.wraps("MultiSteps.update", _LAYOUTS, ">=0.2.8")
def _update_accumulator(
    stock: Stock, self: Any, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
) -> tuple[PyTree, Any]:
    """From 0.2.8 on, accumulate in one dtype that loses nothing."""
    if not same_structure(updates, state.acc_grads):
        return stock(self, updates, state, params, **extra_args)  # type: ignore[no-any-return]
    # Stock shows the inner transformation the dtypes of the gradients. Integers cannot hold a mean.
    pairs = zip(map(dtype_of, leaves(updates)), _accumulated(updates, leaves(state.acc_grads)))
    shown = [grad if kind_of(grad) >= REAL else accumulated for grad, accumulated in pairs]
    patched_copy = _PatchedCopy(self, updates, state, params, extra_args, shown)
    common = promoted(*patched_copy.stored) if patched_copy.stored else jnp.dtype(jnp.float32)
    if self._accumulator_dtype is None:
        count("accumulator_dtype=None accepted")
    patched_copy.copied._accumulator_dtype = common
    patched_copy.copied._acc_update = _of_the_same_kind(self._acc_update)
    with standard_promotion():
        return patched_copy.run(stock, shown, [common] * len(shown))


def _accumulated(grads: PyTree, accumulators: list[Any]) -> list[Any]:
    """List the float dtypes that gradients and their accumulators promote to."""
    pairs = zip(leaves(grads), accumulators)
    return [_float_dtype(promoted(dtype_of(grad), dtype_of(acc))) for grad, acc in pairs]


@dataclasses.dataclass(eq=False, repr=False)
class _PatchedCopy:
    """A copy of a MultiSteps for one step, on lists of leaves.

    Outside, gradients, state and updates are the user's trees. Inside, the user's inner
    transformation is given such trees again.

    Attributes:
      original: the user's MultiSteps.
      grads: in the structure of ``state.acc_grads``.
      state: before the step.
      params: may be None.
      extra_args: of the step.
      shown: the dtypes in which the inner transformation sees the accumulated gradients.
      other: the dtypes of stock's other branch, or None if stock takes them from the inner
        transformation.
      stored: the dtypes of the accumulators after the step: as before, within their kinds.
      copied: the copy, for stock.
    """

    original: Any
    grads: PyTree
    state: Any
    params: PyTree
    extra_args: dict[str, Any]
    shown: list[Any]
    other: list[Any] | None = None

    def __post_init__(self) -> None:
        accs = leaves(self.state.acc_grads)
        pairs = zip(map(dtype_of, accs), _accumulated(self.grads, accs))
        self.stored = [acc if kind_of(acc) == kind_of(wide) else wide for acc, wide in pairs]
        self._outer: Any = jax.tree_util.tree_structure(self.grads)
        self._inner: Any = jax.tree_util.tree_structure(self.state.inner_opt_state)
        # Structure of the updates. Eager stock may skip the inner transformation.
        self._structure: Any = self._outer
        self._dtypes = self.other or self.shown
        self.copied = self._copied(self.original)

    def _copied(self, multi_steps: Any) -> Any:
        import optax

        patched_copy = copy.copy(multi_steps)
        inner_update = counting(self._inner_update)
        # Not by a call: ``every_transform`` would bound updates by gradients in a plain list.
        patched_copy._opt = optax.GradientTransformation._make(
            (multi_steps._opt.init, inner_update)
        )
        patched_copy._every_k_schedule = counting(
            lambda step: _like_the_counter(multi_steps._every_k_schedule(step))
        )
        if hasattr(multi_steps, "_should_skip_update_fn"):  # From 0.1.3 on.

            def should_skip(_: Any, step: Any, __: Any) -> tuple[Any, PyTree]:
                skip, skip_state = multi_steps._should_skip_update_fn(self.grads, step, self.params)
                return skip, cast_back(skip_state, self.state.skip_state, "MultiSteps: skip_state")

            patched_copy._should_skip_update_fn = counting(should_skip)
        return patched_copy

    def run(self, stock: Stock, grads: list[Any], acc_grads: list[Any]) -> tuple[PyTree, Any]:
        """Run stock with gradients and accumulators of these dtypes."""
        state = self.state._replace(
            inner_opt_state=leaves(self.state.inner_opt_state),
            acc_grads=list(map(cast, leaves(self.state.acc_grads), acc_grads)),
        )
        new_updates, new_state = stock(
            self.copied, list(map(cast, leaves(self.grads), grads)), state, leaves(self.params)
        )
        stored = map(cast, new_state.acc_grads, self.stored)
        return (
            self._structure.unflatten(map(cast, new_updates, self._dtypes)),
            new_state._replace(
                inner_opt_state=self._inner.unflatten(new_state.inner_opt_state),
                acc_grads=self._outer.unflatten(stored),
            ),
        )

    def _inner_update(
        self, acc_grads: list[Any], inner_state: list[Any], params: list[Any]
    ) -> tuple[list[Any], PyTree]:
        # Extra arguments are bound here, because stock passes callables to eval_shape (0.2.4,
        # https://github.com/google-deepmind/optax/pull/1122) or drops all of them (0.1.5, 0.1.7).
        grads = self._outer.unflatten(map(cast, acc_grads, self.shown))
        state = self._inner.unflatten(inner_state)
        structure: Any = jax.tree_util.tree_structure(self.params)
        given = structure.unflatten(params)
        new_updates, new_state = self.original._opt.update(grads, state, given, **self.extra_args)
        held = cast_back(new_state, state, "MultiSteps: state of the inner transformation")
        # From 0.2.8 on (no other branch), the gradients may be narrower than the accumulators.
        like = self.grads if self.other is None else grads
        bounded = cast_updates(new_updates, like, given, state)
        self._structure = jax.tree_util.tree_structure(bounded)
        flat = leaves(bounded)
        self._dtypes = list(map(dtype_of, flat))
        return (
            flat if self.other is None else fit(flat, self.other),
            leaves(held) if same_structure(held, state) else held,
        )


def _like_the_counter(k_steps: Any) -> Any:
    """Cast a strong int64 schedule to int32, so that the mini-step counter stays int32."""
    if not is_weak(k_steps) and jnp.issubdtype(k_steps.dtype, jnp.integer):
        return cast(k_steps, jnp.int32)
    return k_steps


def _of_the_same_kind(accumulate: Callable[..., Any]) -> Callable[..., Any]:
    """Keep real leaves real where one complex leaf makes all accumulators complex."""

    def acc_update(grad: Any, acc: Any, *, n_acc: Any) -> Any:
        real = not jnp.issubdtype(dtype_of(grad), jnp.complexfloating)
        return accumulate(grad, jnp.real(acc) if real else acc, n_acc=n_acc)

    return acc_update


@PATCH.fault(">=0.1.2", issue=1207)
def inner_drift(optax: Any) -> str | None:
    """MultiSteps around a transformation that changes a dtype: TypeError, or a changing state."""
    return demo.one_step(optax.MultiSteps(demo.drifting(optax), 2), demo.shapes(jnp.bfloat16))


@PATCH.fault(">=0.1.3,<0.2.4", issue=377)
def adafactor(optax: Any) -> str | None:
    """MultiSteps(adafactor) on bfloat16 params: TypeError from cond."""
    tx = optax.MultiSteps(optax.adafactor(1e-3), 2)
    # Updates of adafactor are float32 there, like its state: ``promotion`` fixes that.
    return demo.one_step(tx, demo.shapes(jnp.bfloat16), state_asks=True)


@PATCH.fault("==0.2.3", issue=1038)
def schedule_free(optax: Any) -> str | None:
    """MultiSteps(schedule_free) on bfloat16 params: TypeError from cond."""
    tx = demo.public(optax, "contrib.schedule_free")(optax.sgd(0.1), learning_rate=0.1)
    return demo.one_step(optax.MultiSteps(tx, 2), demo.shapes(jnp.bfloat16), state_asks=True)


@PATCH.fault("<0.2.8", issue=1039)
def mixed_precision(optax: Any) -> str | None:
    """float32 gradients on bfloat16 params: TypeError from cond, or the state changes."""
    params, grads = demo.shapes(jnp.bfloat16), demo.shapes(jnp.float32)
    return demo.one_step(optax.MultiSteps(optax.adam(1e-3), 2), params, grads)


@PATCH.fault("<0.2.8", abstract=False)
def half_precision_sum(optax: Any) -> str | None:
    """Accumulates bfloat16 gradients in bfloat16: 1,000 from 0.5 to 1.5 have the mean 0.5."""
    tx, params = optax.MultiSteps(optax.sgd(1.0), 1000), jnp.zeros((), jnp.bfloat16)
    grads = jnp.linspace(0.5, 1.5, 1000).astype(jnp.bfloat16)
    _, updates = jax.lax.scan(
        lambda state, grad: tx.update(grad, state, params)[::-1], tx.init(params), grads
    )
    mean = -float(updates[-1])
    return (
        None if abs(mean - 1) < 0.01 else f"the mean of 1,000 gradients from 0.5 to 1.5 is {mean}"
    )


@PATCH.fault(">=0.1.8")
def int64_schedule(optax: Any) -> str | None:
    """int64 every_k_schedule in 64-bit mode: TypeError from cond."""
    with x64():
        tx = optax.MultiSteps(optax.sgd(0.1), lambda step: jnp.asarray([2, 3], jnp.int64)[step % 2])
        return demo.one_step(tx, demo.shapes(jnp.float32))


@PATCH.fault("==0.2.4", issue=1122)
def callable_extra_argument(optax: Any) -> str | None:
    """Extra arguments that are functions: TypeError."""

    def update(
        grads: PyTree, state: PyTree, params: PyTree = None, *, value_fn: Any = None
    ) -> tuple[PyTree, PyTree]:
        del params, value_fn
        return grads, state

    return _show_extra_argument(optax, update, value_fn=lambda params: params)


@PATCH.fault(">=0.1.5,<0.1.8")
def required_extra_argument(optax: Any) -> str | None:
    """Extra arguments that the inner transformation requires: TypeError."""

    def update(
        grads: PyTree, state: PyTree, params: PyTree = None, *, scale: Any
    ) -> tuple[PyTree, PyTree]:
        del params
        return tree_map(lambda g: g * scale, grads), state

    return _show_extra_argument(optax, update, scale=jax.ShapeDtypeStruct((), jnp.float32))


def _show_extra_argument(optax: Any, update: Callable[..., Any], **extra_args: Any) -> str | None:
    build = demo.public(optax, "GradientTransformationExtraArgs")
    inner = build(lambda _: optax.EmptyState(), update)
    return demo.one_step(optax.MultiSteps(inner, 2), demo.shapes(jnp.float32), **extra_args)


@PATCH.fault("==0.2.8", issue=1567)
def complex_accumulator(optax: Any) -> str | None:
    """Complex gradients lose their imaginary part."""
    state = jax.eval_shape(optax.MultiSteps(optax.sgd(0.1), 2).init, demo.shapes(jnp.complex64))
    dtype = state.acc_grads["w"].dtype
    return None if dtype == jnp.complex64 else f"complex64 gradients are accumulated in {dtype}"


@PATCH.fault("==0.2.8", issue=1567)
def float64_accumulator(optax: Any) -> str | None:
    """float64 gradients are accumulated in float32."""
    with x64():
        state = jax.eval_shape(optax.MultiSteps(optax.sgd(0.1), 2).init, demo.shapes(jnp.float64))
    dtype = state.acc_grads["w"].dtype
    return None if dtype == jnp.float64 else f"float64 gradients are accumulated in {dtype}"


@PATCH.fault("==0.2.8", issue=1567)
def accumulator_dtype_none(optax: Any) -> str | None:
    """accumulator_dtype=None, as documented: TypeError."""
    demo.public(optax, "MultiSteps", parameter="accumulator_dtype")
    tx = optax.MultiSteps(optax.sgd(0.1), 2, accumulator_dtype=None)
    return demo.one_step(tx, demo.shapes(jnp.bfloat16))


@PATCH.fault(">=0.1.2")
def strict_promotion(optax: Any) -> str | None:
    """Strict dtype promotion raises TypePromotionError inside MultiSteps."""
    with jax.numpy_dtype_promotion("strict"):
        return demo.one_step(optax.MultiSteps(optax.sgd(0.1), 2), demo.shapes(jnp.float32))


@PATCH.fault("<0.2.8")
def integer_leaf(optax: Any) -> str | None:
    """Integer leaves change the state to float32, or raise TypeError."""
    tx = optax.MultiSteps(optax.sgd(1.0), 2)
    return demo.one_step(tx, demo.shapes(jnp.float32, jnp.int32))
