"""MultiSteps: one dtype inside, the dtypes of the user outside.

Stock ``MultiSteps.update`` builds two or three branches of ``lax.cond`` and trusts that they agree.
They do if gradients, accumulator and inner updates share a dtype. So stock is run just that way:
its inputs are brought to one dtype, its inner transformation is held to the dtypes that it is
given, and its outputs are brought back. Where all agree already, nothing is cast, and the program
is stock's.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, Callable

import jax
import jax.numpy as jnp

from optax_dtypefix._dtypes import (
    PyTree,
    cast,
    cast_like,
    dtype_of,
    hold,
    is_weak,
    leaves,
    strengthen,
    tree_map,
    x64,
)
from optax_dtypefix._patch import Fault, Patch, Target
from optax_dtypefix.patches import _demonstrate as demo
from optax_dtypefix.patches._steady import standard_promotion


def _init(stock: Callable[..., Any], self: Any, params: PyTree) -> Any:
    """As stock, without weak types, which would turn strong in the first step."""
    return strengthen(stock(self, params))


def _init_accumulator(stock: Callable[..., Any], self: Any, params: PyTree) -> Any:
    """As :func:`_init`, with an accumulator that can hold what is accumulated."""
    state = _init(stock, self, params)
    acc_grads = tree_map(
        lambda acc, param: cast(acc, _accumulator_dtype(self._accumulator_dtype, dtype_of(param))),
        state.acc_grads,
        params,
    )
    return state._replace(acc_grads=acc_grads)


def _accumulator_dtype(asked: Any, param: Any) -> Any:
    """What a leaf is accumulated in, given ``accumulator_dtype`` and the dtype of the param.

    float32, the default, means "no half precision": it must not narrow float64. A complex leaf
    needs a complex accumulator whatever was asked, an integer leaf stays an integer.
    """
    if asked is None or not jnp.issubdtype(param, jnp.inexact):
        return param
    if jnp.issubdtype(param, jnp.complexfloating) or asked == jnp.float32:
        return _promoted(asked, param)
    return asked


def _promoted(*dtypes: Any) -> Any:
    """What they promote to, also where the user's arithmetic may not promote."""
    with standard_promotion():
        return jnp.result_type(*dtypes)


def _update(
    stock: Callable[..., Any],
    self: Any,
    updates: PyTree,
    state: Any,
    params: PyTree = None,
    **extra_args: Any,
) -> tuple[PyTree, Any]:
    """Up to 0.2.7: stock runs with gradients and accumulator in the wider of their dtypes."""
    mean = self._use_grad_mean

    def working(grad: Any, acc: Any) -> Any:
        dtype = _promoted(dtype_of(grad), dtype_of(acc))
        return jnp.dtype(jnp.float32) if mean and not jnp.issubdtype(dtype, jnp.inexact) else dtype

    dtypes = tree_map(working, updates, state.acc_grads)
    with standard_promotion():
        new_updates, new_state = stock(
            _steady_twin(self, updates, state, extra_args),
            tree_map(cast, updates, dtypes),
            state._replace(acc_grads=tree_map(cast, state.acc_grads, dtypes)),
            params,
        )
    acc_grads = cast_like(new_state.acc_grads, state.acc_grads)
    return hold(new_updates, updates), new_state._replace(acc_grads=acc_grads)


def _update_accumulator(
    stock: Callable[..., Any],
    self: Any,
    updates: PyTree,
    state: Any,
    params: PyTree = None,
    **extra_args: Any,
) -> tuple[PyTree, Any]:
    """From 0.2.8 on: stock accumulates in one dtype of its own, here one that loses nothing."""
    twin = _steady_twin(self, updates, state, extra_args)
    common = _common_dtype(state.acc_grads, updates)
    twin._accumulator_dtype = common
    twin._acc_update = _of_the_same_kind(self._acc_update)
    with standard_promotion():
        new_updates, new_state = stock(
            twin,
            updates,
            state._replace(acc_grads=tree_map(lambda acc: cast(acc, common), state.acc_grads)),
            params,
        )
    acc_grads = cast_like(new_state.acc_grads, state.acc_grads)
    return hold(new_updates, updates), new_state._replace(acc_grads=acc_grads)


def _common_dtype(acc_grads: PyTree, updates: PyTree) -> Any:
    """One dtype for all accumulators: complex if any gradient is, also after a real checkpoint."""
    found = [dtype_of(acc) for acc in leaves(acc_grads)]
    found += [jnp.complex64 for g in leaves(updates) if jnp.iscomplexobj(g)]
    return _promoted(*found) if found else jnp.dtype(jnp.float32)


def _steady_twin(self: Any, updates: PyTree, state: Any, extra_args: dict[str, Any]) -> Any:
    """A copy of a MultiSteps whose parts keep the dtypes that they are given."""
    import optax

    inner = self._opt

    def inner_update(
        acc_grads: PyTree, inner_state: PyTree, params: PyTree = None
    ) -> tuple[PyTree, PyTree]:
        # Extra arguments are bound here, as stock hands callables to eval_shape (0.2.4,
        # https://github.com/google-deepmind/optax/pull/1122) or drops all of them (0.1.5, 0.1.7).
        inner_updates, new_state = inner.update(acc_grads, inner_state, params, **extra_args)
        return (
            hold(inner_updates, acc_grads, "MultiSteps: updates of the inner transformation"),
            hold(new_state, inner_state, "MultiSteps: state of the inner transformation"),
        )

    twin = copy.copy(self)
    twin._opt = optax.GradientTransformation(inner.init, inner_update)
    twin._every_k_schedule = lambda step: _like_the_counter(self._every_k_schedule(step))
    if hasattr(self, "_should_skip_update_fn"):  # From 0.1.3 on.

        def should_skip(_: PyTree, step: Any, params: PyTree) -> tuple[Any, PyTree]:
            skip, skip_state = self._should_skip_update_fn(updates, step, params)
            return skip, hold(skip_state, state.skip_state, "MultiSteps: skip_state")

        twin._should_skip_update_fn = should_skip
    return twin


def _like_the_counter(k_steps: Any) -> Any:
    """A schedule's strongly typed int64 would turn the int32 mini-step counter into int64."""
    if not is_weak(k_steps) and jnp.issubdtype(k_steps.dtype, jnp.integer):
        return cast(k_steps, jnp.int32)
    return k_steps


def _of_the_same_kind(accumulate: Callable[..., Any]) -> Callable[..., Any]:
    """A tree with one complex leaf has complex accumulators; its real leaves stay real inside."""

    def acc_update(grad: Any, acc: Any, *, n_acc: Any) -> Any:
        real = not jnp.issubdtype(dtype_of(grad), jnp.complexfloating)
        return accumulate(grad, jnp.real(acc) if real else acc, n_acc=n_acc)

    return acc_update


def _show_inner_drift() -> str | None:
    import optax

    return demo.one_step(optax.MultiSteps(demo.drifting(), 2), demo.shapes(jnp.bfloat16))


def _show_adafactor() -> str | None:
    import optax

    return demo.one_step(optax.MultiSteps(optax.adafactor(1e-3), 2), demo.shapes(jnp.bfloat16))


def _show_schedule_free() -> str | None:
    import optax

    schedule_free = demo.contrib("schedule_free")
    if schedule_free is None:
        return None
    tx = schedule_free(optax.sgd(0.1), learning_rate=0.1)
    return demo.one_step(optax.MultiSteps(tx, 2), demo.shapes(jnp.bfloat16))


def _show_mixed_precision() -> str | None:
    import optax

    params, grads = demo.shapes(jnp.bfloat16), demo.shapes(jnp.float32)
    return demo.one_step(optax.MultiSteps(optax.adam(1e-3), 2), params, grads)


def _show_int64_schedule() -> str | None:
    import optax

    with x64():
        tx = optax.MultiSteps(optax.sgd(0.1), lambda step: jnp.asarray([2, 3], jnp.int64)[step % 2])
        return demo.one_step(tx, demo.shapes(jnp.float32))


def _show_callable_extra_argument() -> str | None:
    def update(
        grads: PyTree, state: PyTree, params: PyTree = None, *, value_fn: Any = None
    ) -> tuple[PyTree, PyTree]:
        del params, value_fn
        return grads, state

    return _show_extra_argument(update, value_fn=lambda params: params)


def _show_required_extra_argument() -> str | None:
    def update(
        grads: PyTree, state: PyTree, params: PyTree = None, *, scale: Any
    ) -> tuple[PyTree, PyTree]:
        del params
        return tree_map(lambda g: g * scale, grads), state

    return _show_extra_argument(update, scale=jax.ShapeDtypeStruct((), jnp.float32))


def _show_extra_argument(update: Callable[..., Any], **extra_args: Any) -> str | None:
    import optax

    if not hasattr(optax, "GradientTransformationExtraArgs"):
        return None
    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    return demo.one_step(optax.MultiSteps(inner, 2), demo.shapes(jnp.float32), **extra_args)


def _show_complex_accumulator() -> str | None:
    import optax

    state = jax.eval_shape(optax.MultiSteps(optax.sgd(0.1), 2).init, demo.shapes(jnp.complex64))
    dtype = state.acc_grads["w"].dtype
    return None if dtype == jnp.complex64 else f"complex64 gradients are accumulated in {dtype}"


def _show_float64_accumulator() -> str | None:
    import optax

    with x64():
        state = jax.eval_shape(optax.MultiSteps(optax.sgd(0.1), 2).init, demo.shapes(jnp.float64))
    dtype = state.acc_grads["w"].dtype
    return None if dtype == jnp.float64 else f"float64 gradients are accumulated in {dtype}"


def _show_accumulator_dtype_none() -> str | None:
    import optax

    if "accumulator_dtype" not in inspect.signature(optax.MultiSteps).parameters:
        return None
    tx = optax.MultiSteps(optax.sgd(0.1), 2, accumulator_dtype=None)
    return demo.one_step(tx, demo.shapes(jnp.bfloat16))


def _show_strict_promotion() -> str | None:
    import optax

    with jax.numpy_dtype_promotion("strict"):
        return demo.one_step(optax.MultiSteps(optax.sgd(0.1), 2), demo.shapes(jnp.float32))


def _show_integer_leaf() -> str | None:
    import optax

    tx = optax.MultiSteps(optax.sgd(1.0), 2)
    return demo.one_step(tx, demo.shapes(jnp.float32, jnp.int32))


_LAYOUTS = ("optax.transforms._accumulation", "optax._src.wrappers")

PATCH = Patch(
    id="multi_steps",
    summary=(
        "`MultiSteps` raises `TypeError` or drifts if the inner optimizer changes a dtype, if "
        "gradients are wider than params, or if the schedule is int64; an extra argument is "
        "lost (0.1.5, 0.1.7) or may not be a function (0.2.4); 0.2.8 drops the imaginary part "
        "of complex gradients and accumulates float64 in float32"
    ),
    faults=(
        Fault(
            "inner_drift",
            "an inner transformation that changes a dtype: TypeError from cond, or it drifts",
            ">=0.1.2",
            _show_inner_drift,
            "https://github.com/google-deepmind/optax/issues/1207",
        ),
        Fault(
            "adafactor",
            "MultiSteps(adafactor) on bfloat16 params: TypeError from cond, or float32 updates",
            "<0.2.4",
            _show_adafactor,
            "https://github.com/google-deepmind/optax/issues/377",
        ),
        Fault(
            "schedule_free",
            "MultiSteps(schedule_free) on bfloat16 params: TypeError from cond",
            "==0.2.3",
            _show_schedule_free,
            "https://github.com/google-deepmind/optax/issues/1038",
        ),
        Fault(
            "mixed_precision",
            "float32 gradients on bfloat16 params: TypeError from cond, or the state drifts",
            "<0.2.8",
            _show_mixed_precision,
            "https://github.com/google-deepmind/optax/pull/1039",
        ),
        Fault(
            "int64_schedule",
            "an int64 every_k_schedule in 64-bit mode: TypeError from cond",
            ">=0.1.8",
            _show_int64_schedule,
        ),
        Fault(
            "callable_extra_argument",
            "an extra argument that is a function: TypeError",
            "==0.2.4",
            _show_callable_extra_argument,
            "https://github.com/google-deepmind/optax/pull/1122",
        ),
        Fault(
            "required_extra_argument",
            "an extra argument that the inner transformation requires: TypeError",
            ">=0.1.5,<0.1.8",
            _show_required_extra_argument,
        ),
        Fault(
            "strict_promotion",
            "strict dtype promotion raises TypePromotionError inside MultiSteps",
            ">=0.1.2",
            _show_strict_promotion,
        ),
        Fault(
            "integer_leaf",
            "an integer leaf turns into float32, or raises TypeError",
            ">=0.1.2",
            _show_integer_leaf,
        ),
        Fault(
            "complex_accumulator",
            "complex gradients lose their imaginary part",
            "==0.2.8",
            _show_complex_accumulator,
            "https://github.com/google-deepmind/optax/issues/1567",
        ),
        Fault(
            "float64_accumulator",
            "float64 gradients are accumulated in float32",
            "==0.2.8",
            _show_float64_accumulator,
            "https://github.com/google-deepmind/optax/issues/1567",
        ),
        Fault(
            "accumulator_dtype_none",
            "accumulator_dtype=None, as documented: TypeError",
            "==0.2.8",
            _show_accumulator_dtype_none,
            "https://github.com/google-deepmind/optax/issues/1567",
        ),
    ),
    targets=(
        Target(_LAYOUTS, "MultiSteps.init", _init, "<0.2.8"),
        Target(_LAYOUTS, "MultiSteps.update", _update, "<0.2.8"),
        Target(_LAYOUTS, "MultiSteps.init", _init_accumulator, ">=0.2.8"),
        Target(_LAYOUTS, "MultiSteps.update", _update_accumulator, ">=0.2.8"),
    ),
)
