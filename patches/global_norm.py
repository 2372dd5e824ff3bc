"""global_norm: norms and the functions that clip or scale by them sum in float32.

Stock squares each leaf and adds up in the dtype of the leaves. In float16, 256^2 = 65536 is above
the largest number, 65504. So a norm above 255 is infinite, g / inf = 0, and clipping turns every
update into zero without a warning. 1e-4^2 = 1e-8 is less than half the smallest number, 6e-8: a
small norm is 0. bfloat16 has 8 bits: 256 + 1 == 256, and the sum over many leaves stops.

Here stock runs on float32 copies of the half-precision leaves. Updates have stock's dtypes: those
of the gradients, promoted with the params where stock multiplies by a norm of the params. A norm
that the user computes has stock's dtype, rounded once. Were it float32, ``g /
optax.global_norm(grads)`` would be float32 too, and a bfloat16 train step that scans on stock would
raise. So a float16 norm above 65504, or a squared norm above it, is still infinite: take the norm
of float32 copies there. Clipping and scaling are not limited by that.

Gradients of 0 have the norm 0, and 0/0 is nan, in every dtype: in ``contrib.normalize``, and where
the limit of ``clip_by_global_norm`` or ``clip_by_block_rms`` is 0, as at the end of a schedule.
Here such updates are 0. What is finite on stock stays.

No upstream issue was found about the sums, nor about 0/0.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
    PyTree,
    cast,
    cast_hyperparameter,
    dtypes_in,
    half_to_float32,
    is_inexact,
    leaves,
    tree_map,
    unflatten_like,
)
from .._contract.updates import Step, bound_of, cast_to
from .._contract.widths import compute_dtype, statistics_dtype
from .._engine.patch import Patch, Stock
from .._tally import count
from ._support import modules
from ._support.arguments import arguments_of
from ._support.deprecated import deprecated_attribute
from ._support.functions import in_float32, trees_in_float32
from ._support.rebuild import Promotes, call_of, rebuild
from ._support.stock_dtypes import promotes_half

PATCH = Patch(
    "global_norm",
    summary="float16 norms above 255 are infinite, so clipped updates are 0 or NaN; bfloat16 "
    "norms of many leaves are too small; a norm of 0 gives NaN",
    allow_missing_targets=True,
)
PATCH.fault("many_leaves", ">=0.1.2")
PATCH.fault("overflow", ">=0.1.2")
PATCH.fault("underflow", ">=0.1.2")
PATCH.fault("tree_norms", ">=0.1.8")
PATCH.fault("safe_norms", ">=0.1.2")
PATCH.fault("unitwise_norm", ">=0.2.3")
PATCH.fault("clip_by_global_norm", ">=0.1.2")
PATCH.fault("clip_by_block_rms", ">=0.1.2")
PATCH.fault("adaptive_grad_clip", ">=0.1.2")
PATCH.fault("trust_ratio", ">=0.1.2")
PATCH.fault("normalize_by_update_norm", ">=0.2.3")
PATCH.fault("per_example", ">=0.1.3")
PATCH.fault("projections", ">=0.2.4")
PATCH.fault("mixed_tree", "<0.1.3")
PATCH.fault("mixed_updates", ">=0.2.3")
PATCH.fault("array_max_norm", ">=0.1.2")
PATCH.fault("zero_limit", ">=0.1.2")
PATCH.fault("normalize_zero", ">=0.1.8")


@dataclasses.dataclass(eq=False, repr=False)  # Cheaper to import than a whole one.
class _DividingByNorm:
    """Replace a transformation that divides by a norm of the gradients.

    Attributes:
      limit: name of the argument that prevents 0/0 if it is positive.
      by_leaf: whether each leaf has a norm of its own.
      by_all: whether each leaf is divided by the norm of all, so that the widest promotes.
      by_params: whether stock also multiplies by a norm of the params.
      in_widest: whether stock raises on leaves of different dtypes.
    """

    limit: str = ""
    by_leaf: bool = False
    by_all: bool = False
    by_params: bool = False
    in_widest: bool = False

    def __call__(self, stock: Stock, *args: Any, **kwargs: Any) -> Any:
        """Build stock's transformation, to be run on float32 copies."""
        tx, hyperparameters = stock(*args, **kwargs), (args, kwargs)
        promotes = any(map(promotes_half, leaves(hyperparameters)))
        limit = arguments_of(stock, args, kwargs)[self.limit] if self.limit else 1
        guarded = not _is_positive(limit)
        widen = _in_widest if self.in_widest else half_to_float32

        def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> Step:
            cast_number = functools.partial(cast_hyperparameter, dtype=statistics_dtype(updates))
            args, kwargs = tree_map(cast_number, hyperparameters)
            wide = widen(updates)
            new_updates, new_state = stock(*args, **kwargs).update(wide, state, widen(params))
            if guarded:
                new_updates = _zero_if_norm_is(new_updates, wide, by_leaf=self.by_leaf)
            # Stock gives an update the dtype of its gradient, unless an array or the params
            # promote it.
            like = params if params is not None and (self.by_params or promotes) else updates
            bound = bound_of(new_updates, updates, like, None)
            if not (promotes or (self.by_all and len(dtypes_in(updates)) > 1)):
                new_updates = cast_to(new_updates, bound)
            return Step(new_updates, new_state, bound)

        call = call_of(stock, args, kwargs)
        where: Promotes = "in mixed trees" if self.by_all else "nowhere"
        where = "everywhere" if promotes else where
        return rebuild(tx, call, update_fn, also_in_float32=guarded, promotes=where)


PATCH.wraps("clip_by_global_norm", modules.CLIPPING, ">=0.1.3")(_DividingByNorm("max_norm"))
PATCH.wraps("clip_by_global_norm", modules.CLIPPING, "<0.1.3")(
    _DividingByNorm("max_norm", in_widest=True)
)
PATCH.wraps("clip_by_block_rms", modules.CLIPPING)(_DividingByNorm("threshold", by_leaf=True))
PATCH.wraps("normalize_by_update_norm", modules.TRANSFORM, ">=0.2.3")(
    _DividingByNorm("eps", by_all=True)
)
PATCH.wraps("adaptive_grad_clip", modules.CLIPPING)(_DividingByNorm(by_params=True))
PATCH.wraps("scale_by_trust_ratio", modules.TRANSFORM)(_DividingByNorm(by_params=True))


@PATCH.wraps("normalize", modules.contrib("sam"), ">=0.1.8")
def _normalize(stock: Stock, *args: Any, **kwargs: Any) -> Any:
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
    count("guard against 0/0")
    zero = [jnp.all(jnp.real(g * jnp.conj(g)) == 0) for g in leaves(grads)]
    if not by_leaf:
        zero = [functools.reduce(jnp.logical_and, zero)] * len(zero) if zero else []
    flat = zip(leaves(updates), zero)
    return unflatten_like(
        updates,
        [jnp.where(no_norm & ~jnp.isfinite(u), jnp.zeros_like(u), u) for u, no_norm in flat],
    )


def _in_widest(tree: PyTree) -> PyTree:
    """Cast every leaf to the widest dtype among them, float32 or wider."""
    widest = compute_dtype(tree)
    return tree_map(
        lambda leaf: cast(leaf, jnp.result_type(leaf, widest)) if is_inexact(leaf) else leaf, tree
    )


PATCH.wraps("global_norm", modules.LINEAR_ALGEBRA, "<0.2.7")(in_float32)
PATCH.wraps("tree_l2_norm", modules.TREE_MATH, ">=0.1.8,<0.2.5")(in_float32)
PATCH.wraps("tree_l1_norm", modules.TREE_MATH, ">=0.2.3,<0.2.5")(in_float32)
PATCH.wraps("tree_norm", modules.TREE_MATH, ">=0.2.5")(in_float32)
PATCH.wraps("safe_norm", modules.NUMERICS)(in_float32)
PATCH.wraps("safe_root_mean_squares", modules.NUMERICS)(in_float32)
PATCH.wraps("unitwise_norm", modules.CLIPPING, ">=0.2.3")(in_float32)
PATCH.wraps("projection_l2_ball", modules.PROJECTIONS, ">=0.2.4")(trees_in_float32)
PATCH.wraps("projection_l2_sphere", modules.PROJECTIONS, ">=0.2.4")(trees_in_float32)
PATCH.wraps("projection_l1_ball", modules.PROJECTIONS, ">=0.2.4")(trees_in_float32)
PATCH.wraps("per_example_global_norm_clip", modules.CLIPPING, ">=0.2.4")(trees_in_float32)
PATCH.wraps("per_example_layer_norm_clip", modules.CLIPPING, ">=0.2.4")(trees_in_float32)


@PATCH.wraps("per_example_global_norm_clip", modules.CLIPPING, ">=0.1.3,<0.2.4")
@PATCH.wraps("per_example_layer_norm_clip", modules.CLIPPING, ">=0.1.8,<0.2.4")
def _per_example(stock: Stock, grads: PyTree, *args: Any, **kwargs: Any) -> Any:
    """Up to 0.2.3, return a list for any sequence of gradients, as stock does."""
    return trees_in_float32(
        stock, list(grads) if isinstance(grads, tuple) else grads, *args, **kwargs
    )


@PATCH.wraps("__getattr__", ("optax.tree_utils",), ">=0.2.5")
def _deprecated_name(stock: Stock, name: str) -> Any:
    """Rebuild a deprecated name: from 0.2.5 on, a partial object of stock's ``tree_norm``."""
    import optax

    found = deprecated_attribute(stock, "optax.tree_utils", name)
    if name in ("tree_l1_norm", "tree_l2_norm"):  # Partial objects in all these releases.
        return functools.partial(optax.tree_utils.tree_norm, **found.keywords)
    return found
