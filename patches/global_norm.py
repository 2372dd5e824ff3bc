"""global_norm: norms and the functions that clip or scale by them sum in float32.

Stock squares each leaf and adds up in the dtype of the leaves. In float16, 256^2 = 65536 is above
the largest number, 65504. So a norm above 255 is infinite, g / inf = 0, and clipping turns every
update into zero without a warning. 1e-4^2 = 1e-8 is less than half the smallest number, 6e-8: a
small norm is 0. bfloat16 has 8 bits: 256 + 1 == 256, and the sum over many leaves stops.

Here stock runs on float32 copies of the half-precision leaves. A norm that you compute yourself has
stock's dtype, or ``g / optax.global_norm(grads)`` would be float32. So a float16 norm above 65504
is still infinite: take the norm of float32 copies there.

Gradients of 0 have the norm 0, and 0/0 is nan, in every dtype: in ``contrib.normalize``, and where
the limit of ``clip_by_global_norm`` or ``clip_by_block_rms`` is 0, as at the end of a schedule.
Here such updates are 0.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
    PyTree,
    cast,
    dtypes_in,
    is_inexact,
    leaves,
    tree_map,
    unflatten_like,
)
from .._contract.updates import Step, bound_of, cast_to
from .._contract.widths import compute_dtype, statistics_dtype
from .._engine.patch import Stock
from ._support.arguments import arguments_of
from ._support.deprecated import deprecated_attribute
from ._support.float32 import cast_hyperparameter, half_to_float32
from ._support.functions import in_float32, trees_in_float32  # noqa: F401  # For ``wrapped.py``.
from ._support.rebuild import Promotes, call_of, rebuild
from ._support.stock_dtypes import promotes_half


def _divide_by_norm(  # noqa: PLR0913
    stock: Stock,
    /,
    *args: Any,
    limited_by: str = "",
    by_leaf: bool = False,
    by_all: bool = False,
    by_params: bool = False,
    widen: Callable[[PyTree], PyTree] = half_to_float32,
    **kwargs: Any,
) -> Any:
    """Replace a transformation that divides by a norm of the gradients: it runs on float32 copies.

    Args:
      stock: the function that builds it.
      *args: of stock, as ``**kwargs``.
      limited_by: name of the argument that prevents 0/0 if it is positive.
      by_leaf: whether each leaf has a norm of its own.
      by_all: whether each leaf is divided by the norm of all, so that the widest promotes.
      by_params: whether stock also multiplies by a norm of the params.
      widen: makes the copies.
      **kwargs: see ``*args``.
    """
    tx, hyperparameters = stock(*args, **kwargs), (args, kwargs)
    promotes = promotes_half(*leaves(hyperparameters))
    limit = arguments_of(stock, args, kwargs)[limited_by] if limited_by else 1
    guarded = not _is_positive(limit)

    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> Step:
        cast_number = functools.partial(cast_hyperparameter, dtype=statistics_dtype(updates))
        args, kwargs = tree_map(cast_number, hyperparameters)
        wide = widen(updates)
        new_updates, new_state = stock(*args, **kwargs).update(wide, state, widen(params))
        if guarded:
            new_updates = _zero_if_norm_is(new_updates, wide, by_leaf=by_leaf)
        # Stock gives an update the dtype of its gradient, unless an array or the params promote it.
        like = params if params is not None and (by_params or promotes) else updates
        bound = bound_of(new_updates, updates, like, None)
        if not (promotes or (by_all and len(dtypes_in(updates)) > 1)):
            new_updates = cast_to(new_updates, bound)
        return Step(new_updates, new_state, bound)

    where: Promotes = "everywhere" if promotes else "in mixed trees" if by_all else "nowhere"
    call = call_of(stock, args, kwargs)
    return rebuild(tx, call, update_fn, also_in_float32=guarded, promotes=where)


def _in_widest(tree: PyTree) -> PyTree:
    """Cast every leaf to the widest dtype among them, float32 or wider."""
    widest = compute_dtype(tree)
    return tree_map(
        lambda leaf: cast(leaf, jnp.result_type(leaf, widest)) if is_inexact(leaf) else leaf, tree
    )


clip_by_global_norm = functools.partial(_divide_by_norm, limited_by="max_norm")
clip_in_widest = functools.partial(_divide_by_norm, limited_by="max_norm", widen=_in_widest)
clip_by_block_rms = functools.partial(_divide_by_norm, limited_by="threshold", by_leaf=True)
normalize_by_update_norm = functools.partial(_divide_by_norm, limited_by="eps", by_all=True)
scale_by_params = functools.partial(_divide_by_norm, by_params=True)


def normalize(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a transformation that divides by a norm, whatever it is."""
    import optax

    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        del params
        # Not by stock: 0.1.8 and 0.1.9 need a jax that has tree_map.
        norm = (getattr(getattr(optax, "tree", None), "norm", None) or optax.global_norm)(updates)
        new_updates = tree_map(lambda g: g / norm, updates)
        return _zero_if_norm_is(new_updates, half_to_float32(updates)), state

    tx = stock(*args, **kwargs)
    return rebuild(tx, call_of(stock, args, kwargs), update_fn, also_in_float32=True)


def _is_positive(limit: Any) -> bool:
    """Check whether a limit is known to be positive: a schedule may give 0 in a later step."""
    try:
        return bool(np.all(np.asarray(limit) > 0))
    except Exception:  # A tracer, or on another host.
        return False


def _zero_if_norm_is(updates: PyTree, grads: PyTree, *, by_leaf: bool = False) -> PyTree:
    """Replace what is not finite by 0 where the norm of the gradients is 0; keep all else."""
    zero = [jnp.all(jnp.real(g * jnp.conj(g)) == 0) for g in leaves(grads)]
    if not by_leaf:
        zero = [functools.reduce(jnp.logical_and, zero)] * len(zero) if zero else []
    flat = zip(leaves(updates), zero)
    return unflatten_like(
        updates,
        [jnp.where(no_norm & ~jnp.isfinite(u), jnp.zeros_like(u), u) for u, no_norm in flat],
    )


def per_example(stock: Stock, grads: PyTree, *args: Any, **kwargs: Any) -> Any:
    """Up to 0.2.3, return a list for any sequence of gradients, as stock does."""
    return trees_in_float32(
        stock, list(grads) if isinstance(grads, tuple) else grads, *args, **kwargs
    )


def deprecated_name(stock: Stock, name: str) -> Any:
    """Rebuild a deprecated name: from 0.2.5 on, a partial object of stock's ``tree_norm``."""
    import optax

    found = deprecated_attribute(stock, "optax.tree_utils", name)
    if name in ("tree_l1_norm", "tree_l2_norm"):  # Partial objects in all these releases.
        return functools.partial(optax.tree_utils.tree_norm, **found.keywords)
    return found
