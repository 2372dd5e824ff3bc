"""multi_steps: MultiSteps runs with any dtypes, and keeps those of the inner transformation.

Stock ``MultiSteps.update`` builds two or three branches of ``lax.cond`` and trusts that they agree.
They agree if, for each leaf, gradient, accumulator and inner update share a dtype (from 0.2.8 on,
if the accumulators do). So stock runs just that way: its inputs are cast, and its outputs are cast
back. The inner transformation sees the dtypes that stock would show it.

Integers and half precision are accumulated in float32, as optax does with half precision from 0.2.8
on: in bfloat16, 256 + 1 is 256. A state with narrower accumulators, from a checkpoint, keeps them.
Up to 0.2.7, if you pass no params and the inner state has no moments, gradients stand in for them.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp

from .._contract.dtypes import (
    COMPLEX,
    REAL,
    PyTree,
    cast,
    dtype_of,
    has_16_bits,
    is_weak,
    kind_of,
    leaves,
    same_structure,
    strip_weak_type,
    tree_map,
    unflatten_like,
)
from .._contract.kinds import promote_initial_state
from .._contract.promotion import standard_promotion
from .._contract.state import cast_back
from .._contract.steps import is_noted, note
from .._contract.updates import cast_updates, subtrees_like
from .._contract.widths import float_dtype, promoted
from .._engine.patch import Stock
from .branches import copy_of, fit, run_in_agreement


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
    stock: Stock,
    self: Any,
    /,
    updates: PyTree,
    state: Any,
    params: PyTree = None,
    **extra_args: Any,
) -> tuple[PyTree, Any]:
    """Up to 0.2.7, give stock one dtype for a gradient, its accumulator and its update."""
    if not same_structure(updates, state.acc_grads):
        return stock(self, updates, state, params, **extra_args)  # type: ignore[no-any-return]
    # Stock shows the inner transformation the promoted dtype of gradient and accumulator, which has
    # the dtype of the param.
    inner = _accumulated(updates, _params_like(updates, state, params))
    accumulated = _accumulated(updates, leaves(state.acc_grads))
    stored, inputs = _stored(state, accumulated), (updates, state, params)

    def run(carried: list[Any]) -> tuple[PyTree, Any]:
        dtypes = _Dtypes(inner, stored, carried, carried)
        return _take_step(stock, self, copy_of(self), inputs, extra_args, dtypes=dtypes)

    with standard_promotion():
        return run_in_agreement(run, list(map(promoted, inner, accumulated)))


def _params_like(grads: PyTree, state: Any, params: PyTree) -> list[Any]:
    """List the params, or what has their dtypes: moments, double accumulators, or gradients."""
    if params is not None and same_structure(grads, params):
        return leaves(params)
    # A param in half precision has a float32 accumulator, so only a double tells the dtype.
    doubles = [
        acc if dtype_of(acc) in (jnp.float64, jnp.complex128) else grad
        for acc, grad in zip(leaves(state.acc_grads), leaves(grads))
    ]
    return next(iter(subtrees_like(state.inner_opt_state, grads)), doubles)


def update_with_arguments(stock: Stock, /, *args: Any, **kwargs: Any) -> tuple[PyTree, Any]:
    """Do as :func:`update` where stock loses extra arguments, or raises."""
    return update(stock, *args, **kwargs)


def update_accumulator(
    stock: Stock,
    self: Any,
    /,
    updates: PyTree,
    state: Any,
    params: PyTree = None,
    **extra_args: Any,
) -> tuple[PyTree, Any]:
    """From 0.2.8 on, accumulate in one dtype that loses nothing."""
    if not same_structure(updates, state.acc_grads):
        return stock(self, updates, state, params, **extra_args)  # type: ignore[no-any-return]
    # Stock shows the inner transformation the dtypes of the gradients. Integers cannot hold a mean.
    accumulated = _accumulated(updates, leaves(state.acc_grads))
    pairs = zip(map(dtype_of, leaves(updates)), accumulated)
    inner = [grad if kind_of(grad) >= REAL else wide for grad, wide in pairs]
    stored = _stored(state, accumulated)
    common = promoted(*stored) if stored else jnp.dtype(jnp.float32)
    copied = copy_of(self)
    copied._accumulator_dtype = common
    if kind_of(common) == COMPLEX:
        copied._acc_update = _of_the_same_kind(self._acc_update)
    dtypes = _Dtypes(inner, stored, [common] * len(inner))
    with standard_promotion():
        return _take_step(stock, self, copied, (updates, state, params), extra_args, dtypes=dtypes)


def _accumulated(grads: PyTree, accumulators: list[Any]) -> list[Any]:
    """List the float dtypes that gradients and their accumulators promote to."""
    pairs = zip(leaves(grads), accumulators)
    return [float_dtype(promoted(dtype_of(grad), dtype_of(acc))) for grad, acc in pairs]


def _stored(state: Any, accumulated: list[Any]) -> list[Any]:
    """List the dtypes of the accumulators after the step: as before, within their kinds."""
    pairs = zip(map(dtype_of, leaves(state.acc_grads)), accumulated)
    return [acc if kind_of(acc) == kind_of(wide) else wide for acc, wide in pairs]


class _Dtypes(NamedTuple):
    """The dtypes of a step, by leaf.

    Attributes:
      inner: those in which the inner transformation sees the accumulated gradients.
      stored: of the accumulators after the step.
      carried: of the accumulators that stock is given.
      other_branch: of the gradients and updates of stock's other branch; None if it has none.
    """

    inner: list[Any]
    stored: list[Any]
    carried: list[Any]
    other_branch: list[Any] | None = None


def _take_step(  # noqa: PLR0913
    stock: Stock,
    multi_steps: Any,
    copied: Any,
    inputs: tuple[PyTree, Any, PyTree],
    extra_args: dict[str, Any],
    *,
    dtypes: _Dtypes,
) -> tuple[PyTree, Any]:
    """Take a step of stock on lists of leaves; the user's inner transformation gets trees again.

    Args:
      stock: ``MultiSteps.update``.
      multi_steps: the user's.
      copied: a MultiSteps for this call alone. Nothing may keep it, or be in a cycle with it: it
        holds the arrays of the step.
      inputs: gradients, in the structure of the accumulators; state; params, which may be None.
      extra_args: for the inner transformation.
      dtypes: of this step.
    """
    import optax

    grads, state, users_params = inputs
    other = dtypes.other_branch
    # Of the updates. Without jit, stock may skip the inner transformation.
    structure: Any = jax.tree_util.tree_structure(grads)
    final = dtypes.inner

    def inner_update(
        acc_grads: list[Any], inner_state: list[Any], params: list[Any]
    ) -> tuple[list[Any], PyTree]:
        nonlocal structure, final
        # Extra arguments are bound here, because stock passes callables to eval_shape (0.2.4,
        # https://github.com/google-deepmind/optax/pull/1122) or drops all of them (0.1.5, 0.1.7).
        mean_grads = unflatten_like(grads, map(cast, acc_grads, dtypes.inner))
        before = unflatten_like(state.inner_opt_state, inner_state)
        like = unflatten_like(users_params, params)
        updates, after = multi_steps._opt.update(mean_grads, before, like, **extra_args)
        after = cast_back(after, before)
        # From 0.2.8 on (no other branch), the gradients may be narrower than the accumulators.
        bounded = cast_updates(updates, mean_grads if other else grads, like, before)
        flat, structure = jax.tree_util.tree_flatten(bounded)
        final = list(map(dtype_of, flat))
        if same_structure(after, before):
            after = leaves(after)
            if other is None and _are_noted(updates):
                after = list(map(_in_float32, after))
        return fit(flat, other) if other else flat, after

    def should_skip(_: Any, step: Any, __: Any) -> tuple[Any, PyTree]:
        skip, skip_state = multi_steps._should_skip_update_fn(grads, step, users_params)
        return skip, cast_back(skip_state, state.skip_state)

    def every_k(step: Any) -> Any:
        k_steps = multi_steps._every_k_schedule(step)
        strong = not is_weak(k_steps) and jnp.issubdtype(k_steps.dtype, jnp.integer)
        # A strong int64 would make the mini-step counter int64.
        return cast(k_steps, jnp.int32) if strong else k_steps

    copied._opt = optax.GradientTransformation(multi_steps._opt.init, inner_update)
    copied._every_k_schedule = every_k
    if hasattr(multi_steps, "_should_skip_update_fn"):  # From 0.1.3 on. It sees the user's trees.
        copied._should_skip_update_fn = should_skip
    on_lists = state._replace(
        inner_opt_state=leaves(state.inner_opt_state),
        acc_grads=list(map(cast, leaves(state.acc_grads), dtypes.carried)),
    )
    flat = list(map(cast, leaves(grads), other or dtypes.inner))
    updates, new_state = stock(copied, flat, on_lists, leaves(users_params))
    vars(copied).clear()  # jax 0.4 caches the branches of ``cond``, and they refer to it.
    final_updates = structure.unflatten(map(cast, updates, final))
    new_state = new_state._replace(
        inner_opt_state=unflatten_like(state.inner_opt_state, new_state.inner_opt_state),
        acc_grads=unflatten_like(grads, map(cast, new_state.acc_grads, dtypes.stored)),
    )
    note(final_updates, grads, state, users_params)
    return final_updates, new_state


def _are_noted(updates: PyTree) -> bool:
    """Check for updates of a known step: params that take them are rounded."""
    return any(map(is_noted, leaves(updates)))


def _in_float32(leaf: Any) -> Any:
    """Let stock choose between an old and a new moment in float32, and cast the choice back.

    That is exact. XLA for TPUs fuses it with the rounding of params, but not a choice in bfloat16.
    """
    return cast(leaf, jnp.float32) if has_16_bits(leaf) else leaf


def _of_the_same_kind(accumulate: Callable[..., Any]) -> Callable[..., Any]:
    """Keep real leaves real where one complex leaf makes all accumulators complex."""

    def acc_update(grad: Any, acc: Any, *, n_acc: Any) -> Any:
        real = not jnp.issubdtype(dtype_of(grad), jnp.complexfloating)
        return accumulate(grad, jnp.real(acc) if real else acc, n_acc=n_acc)

    return acc_update
