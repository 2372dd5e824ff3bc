"""global_norm: norms, and the functions that clip or scale by them, sum in float32.

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

import contextlib
import functools
import warnings
from typing import TYPE_CHECKING, Any, Callable

import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
    PyTree,
    cast,
    dtype_of,
    half_to_float32,
    is_half,
    is_inexact,
    is_weak,
    leaves,
    tree_map,
    unflatten_like,
)
from .._contract.updates import cast_updates, update_dtype
from .._contract.widths import compute_dtype, promoted, statistics_dtype
from .._engine.patch import Patch, Stock
from ._support import reproduce as demo
from ._support.deprecated import deprecated_attribute
from ._support.rebuild import call_of, rebuild

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLIPPING = ("optax.transforms._clipping", "optax._src.clipping")
_TREE_MATH = ("optax.tree_utils._tree_math",)
_PROJECTIONS = ("optax.projections._projections",)

PATCH = Patch(
    "global_norm",
    summary="float16 norms above 255 are infinite, so clipped updates are 0 or NaN; bfloat16 "
    "norms of many leaves are too small",
    allow_missing_targets=True,
)


@PATCH.wraps("clip_by_global_norm", _CLIPPING, ">=0.1.3")
@PATCH.wraps("clip_by_block_rms", _CLIPPING)
@PATCH.wraps("normalize_by_update_norm", ("optax._src.transform",), ">=0.2.3")
def _transformation(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a transformation that divides by a norm."""
    return _run_on(half_to_float32, stock, args, kwargs)


@PATCH.wraps("adaptive_grad_clip", _CLIPPING)
@PATCH.wraps("scale_by_trust_ratio", ("optax._src.transform",))
def _transformation_by_params(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a transformation that also multiplies by a norm of the params."""
    return _run_on(half_to_float32, stock, args, kwargs, by_params=True)


@PATCH.wraps("clip_by_global_norm", _CLIPPING, "<0.1.3")
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
    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        dtype = statistics_dtype(updates)

        def number(value: Any) -> Any:
            return cast(value, dtype) if hasattr(value, "dtype") and is_inexact(value) else value

        promotes = any(hasattr(value, "dtype") for value in (*args, *kwargs.values()))
        tx = stock(*map(number, args), **{name: number(value) for name, value in kwargs.items()})
        new_updates, new_state = tx.update(widen(updates), state, widen(params))
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


@PATCH.wraps("global_norm", ("optax._src.linear_algebra",), "<0.2.7")
@PATCH.wraps("tree_l2_norm", _TREE_MATH, ">=0.1.8,<0.2.5")
@PATCH.wraps("tree_l1_norm", _TREE_MATH, ">=0.2.3,<0.2.5")
@PATCH.wraps("tree_norm", _TREE_MATH, ">=0.2.5")
@PATCH.wraps("safe_norm", ("optax._src.numerics",))
@PATCH.wraps("safe_root_mean_squares", ("optax._src.numerics",))
@PATCH.wraps("unitwise_norm", _CLIPPING, ">=0.2.3")
def _norm(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function that returns a norm; the norm keeps its dtype."""
    tree, others, norm = _widened(stock, args, kwargs)
    if not any(map(is_half, leaves(tree))):
        return norm
    # A Python number among the leaves counts as float32: stock takes its norm on its own.
    dtype = promoted(*map(dtype_of, leaves(tree)))
    return cast(norm, jnp.finfo(jnp.result_type(dtype, *others)).dtype)


@PATCH.wraps("projection_l2_ball", _PROJECTIONS, ">=0.2.4")
@PATCH.wraps("projection_l2_sphere", _PROJECTIONS, ">=0.2.4")
@PATCH.wraps("projection_l1_ball", _PROJECTIONS, ">=0.2.4")
def _projection(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function from a tree to a tree."""
    tree, others, projected = _widened(stock, args, kwargs)
    return _like(projected, tree, others)


@PATCH.wraps("per_example_global_norm_clip", _CLIPPING, ">=0.1.3")
@PATCH.wraps("per_example_layer_norm_clip", _CLIPPING, ">=0.1.8")
def _per_example(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function from a batch of gradients to their clipped sums and a count."""
    grads, others, (clipped, count) = _widened(stock, args, kwargs)
    return _like(clipped, grads, others), count


@PATCH.wraps("__getattr__", ("optax.tree_utils",), ">=0.2.5")
def _deprecated_name(stock: Stock, name: str) -> Any:
    """Rebuild a deprecated name: from 0.2.5 on, a partial object of stock's ``tree_norm``."""
    import optax

    found = deprecated_attribute(stock, "optax.tree_utils", name)
    if name in ("tree_l1_norm", "tree_l2_norm"):  # Partial objects in all these releases.
        return functools.partial(optax.tree_utils.tree_norm, **found.keywords)
    return found


def _widened(
    stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[PyTree, list[Any], Any]:
    """Return the first argument of a call, other arrays, and stock's result for a float32 copy."""
    names = ("updates", "tree", "grads", "x")
    tree = args[0] if args else next((kwargs[name] for name in names if name in kwargs), None)
    wide = half_to_float32(tree)

    def swap(value: Any) -> Any:
        return wide if value is tree else value

    values = (*args, *kwargs.values())
    others = [v for v in values if v is not tree and hasattr(v, "dtype")]
    new = stock(*map(swap, args), **{name: swap(value) for name, value in kwargs.items()})
    return tree, others, new


def _like(tree: PyTree, like: PyTree, others: list[Any]) -> PyTree:
    """Cast each leaf to be no wider than its counterpart, or than another strong argument."""
    if not any(map(is_half, leaves(like))):
        return tree
    asked = tuple(dtype_of(other) for other in others if not is_weak(other))
    pairs = zip(leaves(tree), leaves(like))  # A tuple may have come back as a list.
    dtypes = (update_dtype(dtype_of(leaf), dtype_of(was), asked=asked) for leaf, was in pairs)
    return unflatten_like(tree, map(cast, leaves(tree), dtypes))


# 4 elements of 400: the norm is 800, and one square, 160000, is more than 65504 already.
def _large() -> PyTree:
    return {"b": jnp.full((4,), 400, jnp.float16)}


def _many() -> PyTree:
    return [jnp.ones((), jnp.bfloat16)] * 1000


def _wrong(what: str, got: Any, expected: float) -> str | None:
    if np.isclose(float(got), expected, rtol=0.01):
        return None
    return f"{what} is {float(got):g}, not {expected:g}"


def _probe_sum(optax: Any) -> str | None:
    with _no_warnings():
        return demo.in_half(optax.global_norm, demo.shapes(jnp.bfloat16))


def _probe_tree_norms(optax: Any) -> str | None:
    outcomes = (demo.in_half(norm, demo.shapes(jnp.bfloat16)) for _, norm in _tree_norms(optax))
    return next(filter(None, outcomes), None)


@PATCH.fault(">=0.1.2", abstract=False, probe=_probe_sum)
def many_leaves(optax: Any) -> str | None:
    """Norms of many bfloat16 leaves are too small, so clipped updates are too large.

    256 + 1 == 256 in bfloat16: the sum of 1,000 ones stops at 256, the norm at 16.
    """
    with _no_warnings():
        return _wrong("the norm of 1,000 leaves of 1", optax.global_norm(_many()), 1000**0.5)


@PATCH.fault(">=0.1.2", abstract=False, probe=_probe_sum)
def overflow(optax: Any) -> str | None:
    """float16 norms above 255 are infinite.

    400^2 = 160000 is more than 65504, the largest float16 number.
    """
    with _no_warnings():
        return _wrong("the norm", optax.global_norm(_large()), 800)


@PATCH.fault(">=0.1.2", abstract=False, probe=_probe_sum)
def underflow(optax: Any) -> str | None:
    """float16 norms of small numbers are 0.

    1e-4^2 = 1e-8 is less than half of 6e-8, the smallest float16 number.
    """
    with _no_warnings():
        return _wrong("the norm", optax.global_norm({"b": jnp.full((4,), 1e-4, jnp.float16)}), 2e-4)


@PATCH.fault(">=0.1.8", abstract=False, probe=_probe_tree_norms)
def tree_norms(optax: Any) -> str | None:
    """tree_norm, tree_l2_norm and tree_l1_norm of many bfloat16 leaves are too small.

    256 + 1 == 256, in the sum of squares or of absolute values.
    """
    for name, norm in _tree_norms(optax):
        expected = 1000 if "l1" in name else 1000**0.5
        outcome = _wrong(f"{name} of 1,000 leaves of 1", norm(_many()), expected)
        if outcome is not None:
            return outcome
    return None


def _tree_norms(optax: Any) -> list[tuple[str, Any]]:
    module = getattr(optax, "tree_utils", None)
    names = ("tree_norm", "tree_l2_norm", "tree_l1_norm")
    with _no_warnings():
        return [(name, getattr(module, name)) for name in names if hasattr(module, name)]


@PATCH.fault(">=0.1.2", abstract=False)
def safe_norms(optax: Any) -> str | None:
    """safe_norm and safe_root_mean_squares of float16 arrays are infinite.

    400^2 is infinite. Later x / inf = 0 and inf / inf is nan.
    """
    x = _large()["b"]
    return _wrong("safe_norm", optax.safe_norm(x, 0.0), 800) or _wrong(
        "safe_root_mean_squares", optax.safe_root_mean_squares(x, 0.0), 400
    )


@PATCH.fault(">=0.2.3", abstract=False)
def unitwise_norm(optax: Any) -> str | None:
    """unitwise_norm of float16 arrays is infinite."""
    norm = demo.public(optax, "transforms.unitwise_norm")
    return _wrong("the norm", norm(_large()["b"])[0], 800)


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
    params = _large()
    updates, _ = tx.update(params, tx.init(params), params)
    return _wrong("an update", updates["b"][0], expected)


def _normalize(optax: Any) -> Any:
    return demo.public(optax, "normalize_by_update_norm")()


@PATCH.fault(">=0.1.3", abstract=False)
def per_example(optax: Any) -> str | None:
    """Per-example clipping clips float16 gradients of a norm above 255 to zero."""
    for name in ("per_example_global_norm_clip", "per_example_layer_norm_clip"):
        clip = getattr(optax, name, None)
        if clip is not None:
            (clipped,), _ = clip([jnp.full((2, 4), 400, jnp.float16)], 1.0)
            outcome = _wrong(f"the sum by {name}", clipped[0], 1)
            if outcome is not None:
                return outcome
    return None


@PATCH.fault(">=0.2.4", abstract=False)
def projections(optax: Any) -> str | None:
    """projection_l2_ball and projection_l2_sphere project float16 norms above 255 to zero."""
    for name in ("projection_l2_ball", "projection_l2_sphere"):
        project = demo.public(optax, f"projections.{name}")
        outcome = _wrong(name, project(_large())["b"][0], 0.5)
        if outcome is not None:
            return outcome
    return None


@PATCH.fault("<0.1.3")
def mixed_tree(optax: Any) -> str | None:
    """clip_by_global_norm on leaves of different dtypes: TypeError.

    t / norm has the wider dtype of the two, and ``lax.select`` takes one dtype only.
    """
    return demo.one_step(optax.clip_by_global_norm(1.0), demo.shapes(jnp.bfloat16, jnp.float32))


@PATCH.fault(">=0.2.3")
def mixed_updates(optax: Any) -> str | None:
    """normalize_by_update_norm on mixed trees: float32 updates for bfloat16 gradients.

    A bfloat16 leaf is divided by the norm of the whole tree, which is float32 if one leaf is.
    """
    return demo.one_step(_normalize(optax), demo.shapes(jnp.bfloat16, jnp.float32))


@PATCH.fault(">=0.1.2")
def array_max_norm(optax: Any) -> str | None:
    """clip_by_global_norm with a float32 max_norm on half-precision gradients: TypeError.

    (t / norm) * max_norm is float32, and ``lax.select`` takes one dtype only.
    """
    return demo.one_step(optax.clip_by_global_norm(np.float32(1)), demo.shapes(jnp.bfloat16))


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Silence deprecations: ``global_norm`` from 0.2.7 on, ``tree_l2_norm`` from 0.2.5 on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
