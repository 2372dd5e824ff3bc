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

No upstream issue was found about the sums.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
    PyTree,
    cast,
    cast_hyperparameter,
    half_to_float32,
    is_inexact,
    leaves,
    tree_map,
)
from .._contract.updates import cast_updates
from .._contract.widths import compute_dtype, statistics_dtype
from .._engine.patch import Patch, Stock
from ._support import (
    modules,
    reproduce as demo,
)
from ._support.deprecated import deprecated_attribute
from ._support.functions import in_float32, trees_in_float32
from ._support.rebuild import call_of, rebuild

PATCH = Patch(
    "global_norm",
    summary="float16 norms above 255 are infinite, so clipped updates are 0 or NaN; bfloat16 "
    "norms of many leaves are too small",
    allow_missing_targets=True,
)


@PATCH.wraps("clip_by_global_norm", modules.CLIPPING, ">=0.1.3")
@PATCH.wraps("clip_by_block_rms", modules.CLIPPING)
@PATCH.wraps("normalize_by_update_norm", modules.TRANSFORM, ">=0.2.3")
def _transformation(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a transformation that divides by a norm."""
    return _run_on(half_to_float32, stock, args, kwargs)


@PATCH.wraps("adaptive_grad_clip", modules.CLIPPING)
@PATCH.wraps("scale_by_trust_ratio", modules.TRANSFORM)
def _transformation_by_params(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a transformation that also multiplies by a norm of the params."""
    return _run_on(half_to_float32, stock, args, kwargs, by_params=True)


@PATCH.wraps("clip_by_global_norm", modules.CLIPPING, "<0.1.3")
def _transformation_in_one_dtype(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """In 0.1.2, replace a transformation that raises on leaves of different dtypes."""
    return _run_on(_in_widest, stock, args, kwargs)


def _run_on(
    widen: Callable[[PyTree], PyTree],
    stock: Stock,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    by_params: bool = False,
) -> Any:
    hyperparameters = args, kwargs
    promotes = any(hasattr(value, "dtype") for value in leaves(hyperparameters))

    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        cast_number = functools.partial(cast_hyperparameter, dtype=statistics_dtype(updates))
        args, kwargs = tree_map(cast_number, hyperparameters)
        new_updates, new_state = stock(*args, **kwargs).update(widen(updates), state, widen(params))
        # Stock gives an update the dtype of its gradient, unless an array or the params promote it.
        like = params if params is not None and (by_params or promotes) else updates
        return cast_updates(new_updates, updates, like), new_state

    return rebuild(stock(*args, **kwargs), call_of(stock, args, kwargs), update_fn)


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


# 4 elements of 400: the norm is 800, and one square, 160000, is more than 65504 already.
_LARGE = {"b": np.full(4, 400, np.float16)}


@demo.no_warnings()  # global_norm is deprecated from 0.2.7 on, tree_l2_norm from 0.2.5 on.
def _probe_sum(optax: Any) -> str | None:
    return demo.in_half(optax.global_norm, demo.shapes(jnp.bfloat16))


def _probe_tree_norms(optax: Any) -> str | None:
    params = demo.shapes(jnp.bfloat16)
    return demo.first_named(lambda norm: demo.in_half(norm, params), _tree_norms(optax))


@PATCH.fault(">=0.1.2", abstract=False, probe=_probe_sum)
@demo.no_warnings()
def many_leaves(optax: Any) -> str | None:
    """Norms of many bfloat16 leaves are too small, so clipped updates are too large.

    256 + 1 == 256 in bfloat16: the sum of 1,000 ones stops at 256, the norm at 16.
    """
    return demo.wrong(
        "the norm of 1,000 leaves of 1", optax.global_norm(demo.thousand_ones()), 1000**0.5
    )


@PATCH.fault(">=0.1.2", abstract=False, probe=_probe_sum)
@demo.no_warnings()
def overflow(optax: Any) -> str | None:
    """float16 norms above 255 are infinite.

    400^2 = 160000 is more than 65504, the largest float16 number.
    """
    return demo.wrong("the norm", demo.compiled(optax.global_norm, _LARGE), 800)


@PATCH.fault(">=0.1.2", abstract=False, probe=_probe_sum)
@demo.no_warnings()
def underflow(optax: Any) -> str | None:
    """float16 norms of small numbers are 0.

    1e-4^2 = 1e-8 is less than half of 6e-8, the smallest float16 number.
    """
    small = np.full(4, 1e-4, np.float16)
    return demo.wrong("the norm", demo.compiled(optax.global_norm, small), 2e-4)


@PATCH.fault(">=0.1.8", abstract=False, probe=_probe_tree_norms)
def tree_norms(optax: Any) -> str | None:
    """tree_norm, tree_l2_norm and tree_l1_norm of many bfloat16 leaves are too small.

    256 + 1 == 256, in the sum of squares or of absolute values.
    """
    return demo.first(
        demo.wrong(
            f"{name} of 1,000 leaves of 1",
            norm(demo.thousand_ones()),
            1000 if "l1" in name else 1000**0.5,
        )
        for name, norm in _tree_norms(optax).items()
    )


@demo.no_warnings()
def _tree_norms(optax: Any) -> dict[str, Any]:
    names = ("tree_norm", "tree_l2_norm", "tree_l1_norm")
    return demo.all_public(optax, *(f"tree_utils.{name}" for name in names))


@PATCH.fault(">=0.1.2", abstract=False)
def safe_norms(optax: Any) -> str | None:
    """safe_norm and safe_root_mean_squares of float16 arrays are infinite.

    400^2 is infinite. Later x / inf = 0 and inf / inf is nan.
    """
    x = _LARGE["b"]
    return demo.wrong("safe_norm", demo.compiled(optax.safe_norm, x, 0.0), 800) or demo.wrong(
        "safe_root_mean_squares", demo.compiled(optax.safe_root_mean_squares, x, 0.0), 400
    )


@PATCH.fault(">=0.2.3", abstract=False)
def unitwise_norm(optax: Any) -> str | None:
    """unitwise_norm of float16 arrays is infinite."""
    norm = demo.public(optax, "transforms.unitwise_norm")
    return demo.wrong("the norm", demo.compiled(norm, _LARGE["b"]), 800)


@PATCH.fault(">=0.1.2", abstract=False)
def clip_by_global_norm(optax: Any) -> str | None:
    """clip_by_global_norm clips float16 gradients of a norm above 255 to zero."""
    return _wrong_update(optax.clip_by_global_norm(1.0), 0.5)


@PATCH.fault(">=0.1.2", abstract=False)
def clip_by_block_rms(optax: Any) -> str | None:
    """clip_by_block_rms clips float16 gradients above 255 to zero."""
    return _wrong_update(optax.clip_by_block_rms(1.0), 1)


@PATCH.fault(">=0.1.2", abstract=False)
def adaptive_grad_clip(optax: Any) -> str | None:
    """adaptive_grad_clip clips float16 gradients of a norm above 255 to zero or NaN."""
    return _wrong_update(optax.adaptive_grad_clip(0.5), 200)


@PATCH.fault(">=0.1.2", abstract=False)
def trust_ratio(optax: Any) -> str | None:
    """scale_by_trust_ratio, lamb and lars give NaN for float16 norms above 255."""
    return _wrong_update(optax.scale_by_trust_ratio(), 400)


@PATCH.fault(">=0.2.3", abstract=False)
def normalize_by_update_norm(optax: Any) -> str | None:
    """normalize_by_update_norm scales float16 gradients of a norm above 255 to zero."""
    return _wrong_update(_normalize(optax), 0.5)


def _wrong_update(tx: Any, expected: float) -> str | None:
    return demo.wrong("an update", demo.first_updates(tx, _LARGE)["b"], expected)


def _normalize(optax: Any) -> Any:
    return demo.public(optax, "normalize_by_update_norm")()


@PATCH.fault(">=0.1.3", abstract=False)
def per_example(optax: Any) -> str | None:
    """Per-example clipping clips float16 gradients of a norm above 255 to zero."""
    names = ("per_example_global_norm_clip", "per_example_layer_norm_clip")
    grads = np.full((2, 4), 400, np.float16)
    return demo.first(
        demo.wrong(
            f"the sum by {name}", demo.compiled(lambda g, clip=clip: clip([g], 1.0)[0], grads), 1
        )
        for name, clip in demo.all_public(optax, *names).items()
    )


@PATCH.fault(">=0.2.4", abstract=False)
def projections(optax: Any) -> str | None:
    """projection_l2_ball and projection_l2_sphere give zero for float16 norms above 255."""
    project = demo.public(optax, "projections.projection_l2_ball")
    onto = demo.public(optax, "projections.projection_l2_sphere")
    return demo.wrong("projection_l2_ball", demo.compiled(project, _LARGE)["b"], 0.5) or demo.wrong(
        "projection_l2_sphere", demo.compiled(onto, _LARGE)["b"], 0.5
    )


@PATCH.fault("<0.1.3")
def mixed_tree(optax: Any) -> str | None:
    """clip_by_global_norm on leaves of different dtypes: TypeError.

    t / norm has the wider dtype of the two, and ``lax.select`` takes one dtype only.
    """
    return demo.one_step(optax.clip_by_global_norm(1.0), jnp.bfloat16, jnp.float32)


@PATCH.fault(">=0.2.3")
def mixed_updates(optax: Any) -> str | None:
    """normalize_by_update_norm on mixed trees: float32 updates for bfloat16 gradients.

    A bfloat16 leaf is divided by the norm of the whole tree, which is float32 if one leaf is.
    """
    return demo.one_step(_normalize(optax), jnp.bfloat16, jnp.float32)


@PATCH.fault(">=0.1.2")
def array_max_norm(optax: Any) -> str | None:
    """clip_by_global_norm with a float32 max_norm on half-precision gradients: TypeError.

    (t / norm) * max_norm is float32, and ``lax.select`` takes one dtype only.
    """
    return demo.one_step(optax.clip_by_global_norm(np.float32(1)), jnp.bfloat16)
