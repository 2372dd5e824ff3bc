"""multi_steps: MultiSteps runs with any dtypes, and keeps those of the inner transformation.

Stock ``MultiSteps.update`` builds two or three branches of ``lax.cond`` and trusts that they agree.
They agree if, for each leaf, gradient, accumulator and inner update share a dtype (from 0.2.8 on,
if the accumulators do). So stock runs just that way: its inputs are cast, and its outputs are cast
back. The inner transformation sees the dtypes that stock would show it. Its state keeps its dtypes.
Its updates are returned unchanged unless they are wider than gradients and params. Where all dtypes
agree already, nothing is cast and the program is stock's.

Integers and half precision are accumulated in float32, as optax does with half precision from 0.2.8
on: in bfloat16, 256 + 1 is 256. A state with narrower accumulators, from a checkpoint, keeps them.
Up to 0.2.7, if you pass no params and the inner state has no moments, gradients stand in for them.

Stock is given lists of leaves, because stock builds trees of ``jax.ShapeDtypeStruct``, which a
user-defined pytree node need not accept.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable

import jax
import jax.numpy as jnp

from .._contract.dtypes import (
    COMPLEX,
    REAL,
    PyTree,
    cast,
    dtype_of,
    is_weak,
    kind_of,
    leaves,
    same_structure,
    strip_weak_type,
    tree_map,
)
from .._contract.kinds import promote_initial_state
from .._contract.promotion import standard_promotion
from .._contract.state import cast_back
from .._contract.updates import cast_updates, kept_like
from .._contract.widths import float_dtype, promoted
from .._engine.patch import Stock
from .._tally import count, counting
from ._support.branches import copy_of, fit, run_in_agreement


def init(stock: Stock, self: Any, params: PyTree) -> Any:
    """Run stock without weak types, with accumulators that are wide enough for their gradients."""
    state = stock(self, params)

    def inner_update(grads: PyTree, *args: PyTree) -> Any:
        return self._opt.update(tree_map(_in_float, grads), *args)

    inner_state = promote_initial_state(inner_update, state.inner_opt_state, params)
    requested = getattr(self, "_accumulator_dtype", jnp.float32)  # An argument from 0.2.8 on.
    acc_grads = tree_map(
        lambda acc, param: cast(acc, _accumulator_dtype(requested, dtype_of(param))),
        state.acc_grads,
        params,
    )
    return strip_weak_type(state._replace(inner_opt_state=inner_state, acc_grads=acc_grads))


def _accumulator_dtype(requested: Any, param: Any) -> Any:
    """Choose the dtype of an accumulator by ``accumulator_dtype`` and the dtype of the param.

    float32, the default, means "no half precision": it must not narrow float64. A complex leaf
    needs a complex accumulator whatever was asked.
    """
    if requested is None:
        return float_dtype(param)
    if jnp.issubdtype(param, jnp.complexfloating) or requested == jnp.float32:
        return promoted(requested, param)
    return float_dtype(requested)


def _in_float(leaf: Any) -> Any:
    return cast(leaf, float_dtype(dtype_of(leaf)))


def update(
    stock: Stock, self: Any, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
) -> tuple[PyTree, Any]:
    """Up to 0.2.7, give stock one dtype for a gradient, its accumulator and its update."""
    if not same_structure(updates, state.acc_grads):
        return stock(self, updates, state, params, **extra_args)  # type: ignore[no-any-return]
    # Stock shows the inner transformation the promoted dtype of gradient and accumulator, which has
    # the dtype of the param.
    shown = _accumulated(updates, _params_like(updates, state, params))
    accumulated = _accumulated(updates, leaves(state.acc_grads))
    stored = _stored(state, accumulated)

    def run(dtypes: list[Any]) -> tuple[PyTree, Any]:
        step = _Step(self, updates, state, params, extra_args, shown, stored, dtypes)
        return step.run(stock, copy_of(self), dtypes)

    with standard_promotion():
        return run_in_agreement(run, list(map(promoted, shown, accumulated)))


def _params_like(grads: PyTree, state: Any, params: PyTree) -> list[Any]:
    """List the params, or what has their dtypes: moments, double accumulators, or gradients."""
    if params is not None and same_structure(grads, params):
        return leaves(params)
    # A param in half precision has a float32 accumulator, so only a double tells the dtype.
    doubles = [
        acc if dtype_of(acc) in (jnp.float64, jnp.complex128) else grad
        for acc, grad in zip(leaves(state.acc_grads), leaves(grads))
    ]
    return next(iter(kept_like(state.inner_opt_state, grads)), doubles)


def update_with_arguments(stock: Stock, *args: Any, **kwargs: Any) -> tuple[PyTree, Any]:
    """Do as :func:`update` where stock loses extra arguments, or raises."""
    known = inspect.signature(update).parameters
    count("extra argument passed on", len(kwargs.keys() - known.keys()))
    return update(stock, *args, **kwargs)


def update_accumulator(
    stock: Stock, self: Any, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
) -> tuple[PyTree, Any]:
    """From 0.2.8 on, accumulate in one dtype that loses nothing."""
    if not same_structure(updates, state.acc_grads):
        return stock(self, updates, state, params, **extra_args)  # type: ignore[no-any-return]
    # Stock shows the inner transformation the dtypes of the gradients. Integers cannot hold a mean.
    accumulated = _accumulated(updates, leaves(state.acc_grads))
    pairs = zip(map(dtype_of, leaves(updates)), accumulated)
    shown = [grad if kind_of(grad) >= REAL else wide for grad, wide in pairs]
    stored = _stored(state, accumulated)
    step = _Step(self, updates, state, params, extra_args, shown, stored)
    common = promoted(*stored) if stored else jnp.dtype(jnp.float32)
    if self._accumulator_dtype is None:
        count("accumulator_dtype=None accepted")
    copied = copy_of(self)
    copied._accumulator_dtype = common
    if kind_of(common) == COMPLEX:
        copied._acc_update = _of_the_same_kind(self._acc_update)
    with standard_promotion():
        return step.run(stock, copied, [common] * len(shown))


def _accumulated(grads: PyTree, accumulators: list[Any]) -> list[Any]:
    """List the float dtypes that gradients and their accumulators promote to."""
    pairs = zip(leaves(grads), accumulators)
    return [float_dtype(promoted(dtype_of(grad), dtype_of(acc))) for grad, acc in pairs]


def _stored(state: Any, accumulated: list[Any]) -> list[Any]:
    """List the dtypes of the accumulators after the step: as before, within their kinds."""
    pairs = zip(map(dtype_of, leaves(state.acc_grads)), accumulated)
    return [acc if kind_of(acc) == kind_of(wide) else wide for acc, wide in pairs]


@dataclasses.dataclass(eq=False)
class _Step:
    """One step of stock on lists of leaves; the user's inner transformation gets trees again.

    Attributes:
      multi_steps: the user's.
      grads: in the structure of ``state.acc_grads``.
      state: before the step.
      params: may be None.
      extra_args: for the inner transformation.
      shown: the dtypes in which the inner transformation sees the accumulated gradients.
      stored: the dtypes of the accumulators after the step.
      other: the dtypes of stock's other branch, or None if stock takes them from the inner
        transformation.
    """

    multi_steps: Any
    grads: PyTree
    state: Any
    params: PyTree
    extra_args: dict[str, Any]
    shown: list[Any]
    stored: list[Any]
    other: list[Any] | None = None

    def __post_init__(self) -> None:
        self.outer: Any = jax.tree_util.tree_structure(self.grads)
        self.inner: Any = jax.tree_util.tree_structure(self.state.inner_opt_state)
        self.outer_params: Any = jax.tree_util.tree_structure(self.params)
        # Of the updates. Without jit, stock may skip the inner transformation.
        self.structure: Any = self.outer
        self.dtypes = self.shown

    def run(self, stock: Stock, copied: Any, acc_dtypes: list[Any]) -> tuple[PyTree, Any]:
        """Run stock with accumulators of these dtypes.

        ``copied`` is a MultiSteps for this call alone. Nothing may keep it, or be in a cycle with
        it: it holds the arrays of the step.
        """
        import optax

        init = self.multi_steps._opt.init
        copied._opt = optax.GradientTransformation(init, counting(self._inner_update))
        copied._every_k_schedule = counting(self._every_k)
        if hasattr(self.multi_steps, "_should_skip_update_fn"):  # From 0.1.3 on.
            copied._should_skip_update_fn = counting(self._should_skip)
        accumulators = leaves(self.state.acc_grads)
        state = self.state._replace(
            inner_opt_state=leaves(self.state.inner_opt_state),
            acc_grads=list(map(cast, accumulators, acc_dtypes)),
        )
        grads = list(map(cast, leaves(self.grads), self.other or self.shown))
        updates, state = stock(copied, grads, state, leaves(self.params))
        vars(copied).clear()  # jax 0.4 caches the branches of ``cond``, and they refer to it.
        return (
            self.structure.unflatten(map(cast, updates, self.dtypes)),
            state._replace(
                inner_opt_state=self.inner.unflatten(state.inner_opt_state),
                acc_grads=self.outer.unflatten(map(cast, state.acc_grads, self.stored)),
            ),
        )

    def _inner_update(
        self, acc_grads: list[Any], inner_state: list[Any], params: list[Any]
    ) -> tuple[list[Any], PyTree]:
        # Extra arguments are bound here, because stock passes callables to eval_shape (0.2.4,
        # https://github.com/google-deepmind/optax/pull/1122) or drops all of them (0.1.5, 0.1.7).
        grads = self.outer.unflatten(map(cast, acc_grads, self.shown))
        before = self.inner.unflatten(inner_state)
        given = self.outer_params.unflatten(params)
        updates, after = self.multi_steps._opt.update(grads, before, given, **self.extra_args)
        held = cast_back(after, before, "MultiSteps: state of the inner transformation")
        # From 0.2.8 on (no other branch), the gradients may be narrower than the accumulators.
        like = self.grads if self.other is None else grads
        bounded = cast_updates(updates, like, given, before)
        flat, self.structure = jax.tree_util.tree_flatten(bounded)
        self.dtypes = list(map(dtype_of, flat))
        return (
            flat if self.other is None else fit(flat, self.other),
            leaves(held) if same_structure(held, before) else held,
        )

    def _every_k(self, step: Any) -> Any:
        return _like_the_counter(self.multi_steps._every_k_schedule(step))

    def _should_skip(self, _: Any, step: Any, __: Any) -> tuple[Any, PyTree]:
        """Show the user's function the user's trees."""
        should_skip = self.multi_steps._should_skip_update_fn
        skip, state = should_skip(self.grads, step, self.params)
        return skip, cast_back(state, self.state.skip_state, "MultiSteps: skip_state")


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
