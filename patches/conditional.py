"""conditional: what wraps a transformation in ``lax.cond`` takes one that changes dtypes.

One branch returns what the inner transformation made of updates and state, the other returns the
gradients, or zeros like them, and the state as it was. As soon as the inner one changes a dtype,
the branches differ, and cond raises TypeError (https://github.com/google-deepmind/optax/issues/1207).
Here both branches give the dtypes of the inner transformation's updates, and its state keeps the
dtypes that it has. Where the state would change from one kind of number to another, it begins in
the second, or stock raises.
"""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp

from optax_dtypefix._dtypes import (
    PyTree,
    cast,
    dtype_of,
    have_one_structure,
    hold,
    kind_of,
    leaves,
    strengthen,
)
from optax_dtypefix._kinds import start_in_kind
from optax_dtypefix._patch import Fault, Patch, Target
from optax_dtypefix._updates import cast_updates
from optax_dtypefix.patches import _demonstrate as demo
from optax_dtypefix.patches._branches import fit, in_agreement
from optax_dtypefix.patches._steady import standard_promotion


def _around(stock: Callable[..., Any], inner: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of a function whose first argument is the inner transformation."""
    import optax

    if hasattr(optax, "GradientTransformationExtraArgs"):  # From 0.1.5 on.
        kind: Any = optax.GradientTransformationExtraArgs
        inner = optax.with_extra_args_support(inner)
    else:
        kind = optax.GradientTransformation

    def inner_init(params: PyTree) -> PyTree:
        return strengthen(start_in_kind(inner.update, inner.init(params), params))

    def stock_around(update: Callable[..., Any]) -> Any:
        return stock(kind(inner_init, update), *args, **kwargs)

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        structure: Any = jax.tree_util.tree_structure(updates)
        grads = leaves(updates)

        def run(dtypes: list[Any]) -> tuple[PyTree, PyTree]:
            final = dtypes

            def inner_update(
                _: PyTree, inner_state: PyTree, params: PyTree = None, **extra_args: Any
            ) -> tuple[PyTree, PyTree]:
                nonlocal final
                # The user's own gradients, whatever dtypes the other branch has.
                new_updates, new_state = inner.update(updates, inner_state, params, **extra_args)
                held = hold(new_state, inner_state, f"{name}: state of the inner transformation")
                if not have_one_structure(new_updates, updates):
                    return new_updates, held  # cond reports it.
                bounded = leaves(cast_updates(new_updates, updates, params, inner_state))
                final = [_within_kind(dtype_of(u), dtype) for u, dtype in zip(bounded, dtypes)]
                return structure.unflatten(fit(bounded, dtypes)), held

            given = structure.unflatten(map(cast, grads, dtypes))
            new_updates, new_state = stock_around(inner_update).update(
                given, state, params, **extra_args
            )
            return structure.unflatten(map(cast, leaves(new_updates), final)), new_state

        with standard_promotion():
            return in_agreement(run, list(map(dtype_of, grads)))

    name = getattr(stock, "__name__", "conditional")
    return stock_around(inner.update)._replace(update=update_fn)


def _within_kind(inner: Any, common: Any) -> Any:
    """Choose the inner transformation's dtype for both branches, unless the kind would change."""
    return inner if kind_of(inner) == kind_of(common) else common


def _periodic_update(
    stock: Callable[..., Any], new_tensors: PyTree, old_tensors: PyTree, *args: Any, **kwargs: Any
) -> PyTree:
    """In place of ``periodic_update``: the new tensors come in the dtypes of the old ones."""
    return stock(hold(new_tensors, old_tensors), old_tensors, *args, **kwargs)


def _every_other(step: Any) -> Any:
    return step % 2 == 0


def _show_apply_if_finite() -> str | None:
    import optax

    return demo.one_step(optax.apply_if_finite(demo.drifting(), 3), demo.shapes(jnp.bfloat16))


def _show_maybe_update() -> str | None:
    return _show_conditional("maybe_update")


def _show_conditionally_transform() -> str | None:
    return _show_conditional("conditionally_transform")


def _show_conditionally_mask() -> str | None:
    return _show_conditional("conditionally_mask")


def _show_conditional(name: str) -> str | None:
    import optax

    function = getattr(optax, name, None)
    if function is None:
        return None
    return demo.one_step(function(demo.drifting(), _every_other), demo.shapes(jnp.bfloat16))


def _show_mixed_precision() -> str | None:
    import optax

    params, grads = demo.shapes(jnp.bfloat16), demo.shapes(jnp.float32)
    return demo.one_step(optax.apply_if_finite(optax.trace(0.9), 3), params, grads)


def _show_periodic_update() -> str | None:
    import optax

    new, old = demo.shapes(jnp.float32), demo.shapes(jnp.bfloat16)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    tensors = jax.eval_shape(lambda *args: optax.periodic_update(*args, 2), new, old, step)
    dtype = tensors["w"].dtype
    return None if dtype == jnp.bfloat16 else f"bfloat16 tensors turn into {dtype}"


_MODULES = ("optax.transforms._conditionality", "optax._src.wrappers")
_DTYPES = "https://github.com/google-deepmind/optax/issues/1207"

PATCH = Patch(
    id="conditional",
    summary=(
        "`apply_if_finite`, `maybe_update`, `conditionally_transform`, `conditionally_mask`, "
        "`periodic_update`: `TypeError` from `cond` as soon as the inner optimizer changes a "
        "dtype"
    ),
    independent=True,
    faults=(
        Fault(
            "apply_if_finite",
            "around an optimizer that changes a dtype: TypeError from cond",
            ">=0.1.2",
            _show_apply_if_finite,
            _DTYPES,
        ),
        Fault(
            "mixed_precision",
            "apply_if_finite with float32 gradients and bfloat16 params: TypeError from cond",
            ">=0.1.2",
            _show_mixed_precision,
            _DTYPES,
        ),
        Fault(
            "maybe_update",
            "around an optimizer that changes a dtype: TypeError from cond",
            "<0.2.5",
            _show_maybe_update,
            _DTYPES,
        ),
        Fault(
            "conditionally_transform",
            "around an optimizer that changes a dtype: TypeError from cond",
            ">=0.2.3",
            _show_conditionally_transform,
            _DTYPES,
        ),
        Fault(
            "conditionally_mask",
            "around an optimizer that changes a dtype: TypeError from cond",
            ">=0.2.3",
            _show_conditionally_mask,
            _DTYPES,
        ),
        Fault(
            "periodic_update",
            "new tensors of another dtype than the old ones: TypeError from cond",
            ">=0.1.2",
            _show_periodic_update,
        ),
    ),
    targets=(
        Target(_MODULES, "apply_if_finite", _around),
        Target(_MODULES, "maybe_update", _around, "<0.2.3"),
        Target(_MODULES, "conditionally_transform", _around, ">=0.2.3"),
        Target(_MODULES, "conditionally_mask", _around, ">=0.2.3"),
        Target(("optax._src.update",), "periodic_update", _periodic_update),
    ),
)
