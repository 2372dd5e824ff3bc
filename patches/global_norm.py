"""global_norm: norms, and what clips or scales by them, summed in float32.

Stock squares each leaf and adds up in the dtype of the leaves. In float16 256^2 = 65536 is more
than the largest number, 65504, so that a norm above 255 is infinite and g / inf = 0: clipping turns
every update into zero and says nothing. And 1e-4^2 = 1e-8 is less than half the smallest number,
6e-8: a small norm is 0. In bfloat16, with 8 bits, 256 + 1 == 256: the sum over many leaves stops.

Here stock runs on float32 copies of the half-precision leaves, and updates have stock's dtypes:
those of the gradients, or promoted with the params where stock multiplies with a norm of theirs. A
norm that is called by itself has stock's dtype, rounded once. It could be float32, but
``g / optax.global_norm(grads)`` would then be float32 too, and a bfloat16 train step that scans on
stock would raise. So a float16 norm above 65504 is infinite still, and a squared one above 255:
whoever needs them takes the norm of float32 copies. What clips or scales does not suffer from it.

No upstream issue was found about the sums.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from optax_dtypefix._check import equations
from optax_dtypefix._dtypes import (
    PyTree,
    cast,
    dtype_of,
    is_half,
    is_inexact,
    leaves,
    scalar_dtype,
    tree_map,
    widen,
    working_dtype,
)
from optax_dtypefix._patch import Fault, Patch, Target
from optax_dtypefix._updates import cast_updates, update_dtype
from optax_dtypefix.patches import _demonstrate as demo
from optax_dtypefix.patches._deprecated import look_up

if TYPE_CHECKING:
    from collections.abc import Iterator


def _transformation(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of a transformation that divides by a norm."""
    return _run_on(widen, stock, args, kwargs)


def _transformation_by_params(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of a transformation that multiplies with a norm of the params, too."""
    return _run_on(widen, stock, args, kwargs, by_params=True)


def _transformation_in_one_dtype(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """0.1.2: for one that takes no leaves of different dtypes."""
    return _run_on(_in_widest, stock, args, kwargs)


def _run_on(
    widen: Callable[[PyTree], PyTree],
    stock: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    by_params: bool = False,
) -> Any:
    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        dtype = scalar_dtype(updates)

        def number(value: Any) -> Any:
            return cast(value, dtype) if hasattr(value, "dtype") and is_inexact(value) else value

        promotes = any(hasattr(value, "dtype") for value in (*args, *kwargs.values()))
        tx = stock(*map(number, args), **{name: number(value) for name, value in kwargs.items()})
        new_updates, new_state = tx.update(widen(updates), state, widen(params))
        # Stock gives an update the dtype of its gradient, unless an array or the params promote it.
        like = params if params is not None and (by_params or promotes) else updates
        return cast_updates(new_updates, updates, like), new_state

    return stock(*args, **kwargs)._replace(update=update_fn)


def _in_widest(tree: PyTree) -> PyTree:
    """Every leaf as wide as the widest one, and float32 at least."""
    widest = working_dtype(tree)
    return tree_map(
        lambda leaf: cast(leaf, jnp.result_type(leaf, widest)) if is_inexact(leaf) else leaf, tree
    )


def _norm(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of a function that gives a norm, which keeps its dtype."""
    tree, norm = _widened(stock, args, kwargs)
    if not any(map(is_half, leaves(tree))):
        return norm
    arrays = [value for value in (*args, *kwargs.values()) if hasattr(value, "dtype")]
    return cast(norm, jnp.finfo(jnp.result_type(*leaves(tree), *arrays)).dtype)


def _projection(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of a function from a tree to a tree."""
    tree, projected = _widened(stock, args, kwargs)
    return _like(projected, tree)


def _per_example(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of a function from a batch of gradients to their clipped sums and a count."""
    grads, (clipped, count) = _widened(stock, args, kwargs)
    return _like(clipped, grads), count


def _deprecated_name(stock: Callable[..., Any], name: str) -> Any:
    """From 0.2.5 on: old names are partial objects, made of stock's ``tree_norm`` at import."""
    import optax

    found = look_up(stock, "optax.tree_utils", name)
    if name in ("tree_l1_norm", "tree_l2_norm") and isinstance(found, functools.partial):
        return functools.partial(optax.tree_utils.tree_norm, **found.keywords)
    return found


def _widened(
    stock: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[PyTree, Any]:
    """The first argument of a call, by whatever name, and what stock gives for it in float32."""
    names = ("updates", "tree", "grads", "x")
    tree = args[0] if args else next((kwargs[name] for name in names if name in kwargs), None)
    wide = widen(tree)

    def swap(value: Any) -> Any:
        return wide if value is tree else value

    return tree, stock(*map(swap, args), **{name: swap(value) for name, value in kwargs.items()})


def _like(tree: PyTree, like: PyTree) -> PyTree:
    """Leaves no wider than others, within their kind of number."""
    structure: Any = jax.tree_util.tree_structure(tree)  # A tuple may have come back as a list.
    return structure.unflatten(
        cast(leaf, update_dtype(dtype_of(leaf), dtype_of(other)))
        for leaf, other in zip(leaves(tree), leaves(like))
    )


# 4 elements of 400: the norm is 800, and one square, 160000, is more than 65504 already.
def _large() -> PyTree:
    return {"b": jnp.full((4,), 400, jnp.float16)}


def _many() -> PyTree:
    return [jnp.ones((), jnp.bfloat16)] * 1000


def _wrong(what: str, got: Any, expected: float) -> str | None:
    if np.isclose(float(got), expected, rtol=0.01):
        return None
    return f"{what} is {float(got):g}, not {expected:g}"


def _show_many_leaves() -> str | None:
    import optax

    with _no_warnings():
        return _wrong("the norm of 1,000 leaves of 1", optax.global_norm(_many()), 1000**0.5)


def _show_overflow() -> str | None:
    import optax

    with _no_warnings():
        return _wrong("the norm", optax.global_norm(_large()), 800)


def _show_underflow() -> str | None:
    import optax

    with _no_warnings():
        return _wrong("the norm", optax.global_norm({"b": jnp.full((4,), 1e-4, jnp.float16)}), 2e-4)


def _probe_sum() -> str | None:
    import optax

    with _no_warnings():
        return _in_half(optax.global_norm, demo.shapes(jnp.bfloat16))


def _show_tree_norms() -> str | None:
    for name, norm in _tree_norms():
        expected = 1000 if "l1" in name else 1000**0.5
        outcome = _wrong(f"{name} of 1,000 leaves of 1", norm(_many()), expected)
        if outcome is not None:
            return outcome
    return None


def _probe_tree_norms() -> str | None:
    outcomes = (_in_half(norm, demo.shapes(jnp.bfloat16)) for _, norm in _tree_norms())
    return next(filter(None, outcomes), None)


def _tree_norms() -> list[tuple[str, Any]]:
    import optax

    module = getattr(optax, "tree_utils", None)
    names = ("tree_norm", "tree_l2_norm", "tree_l1_norm")
    with _no_warnings():
        return [(name, getattr(module, name)) for name in names if hasattr(module, name)]


def _show_safe_norms() -> str | None:
    import optax

    x = _large()["b"]
    return _wrong("safe_norm", optax.safe_norm(x, 0.0), 800) or _wrong(
        "safe_root_mean_squares", optax.safe_root_mean_squares(x, 0.0), 400
    )


def _show_unitwise_norm() -> str | None:
    import optax

    unitwise_norm = getattr(getattr(optax, "transforms", None), "unitwise_norm", None)
    return unitwise_norm and _wrong("the norm", unitwise_norm(_large()["b"])[0], 800)


def _show_clip_by_global_norm() -> str | None:
    import optax

    return _wrong_update(optax.clip_by_global_norm(1.0), 0.5)


def _show_clip_by_block_rms() -> str | None:
    import optax

    return _wrong_update(optax.clip_by_block_rms(1.0), 1)


def _show_adaptive_grad_clip() -> str | None:
    import optax

    return _wrong_update(optax.adaptive_grad_clip(0.5), 200)


def _show_trust_ratio() -> str | None:
    import optax

    return _wrong_update(optax.scale_by_trust_ratio(), 400)


def _show_normalize() -> str | None:
    tx = _normalize()
    return tx and _wrong_update(tx, 0.5)


def _wrong_update(tx: Any, expected: float) -> str | None:
    params = _large()
    updates, _ = tx.update(params, tx.init(params), params)
    return _wrong("an update", updates["b"][0], expected)


def _normalize() -> Any:
    import optax

    normalize = getattr(optax, "normalize_by_update_norm", None)
    return normalize and normalize()


def _show_per_example() -> str | None:
    import optax

    for name in ("per_example_global_norm_clip", "per_example_layer_norm_clip"):
        clip = getattr(optax, name, None)
        if clip is not None:
            (clipped,), _ = clip([jnp.full((2, 4), 400, jnp.float16)], 1.0)
            outcome = _wrong(f"the sum by {name}", clipped[0], 1)
            if outcome is not None:
                return outcome
    return None


def _show_projections() -> str | None:
    import optax

    projections = getattr(optax, "projections", None)
    for name in ("projection_l2_ball", "projection_l2_sphere"):
        project = getattr(projections, name, None)
        outcome = project and _wrong(name, project(_large())["b"][0], 0.5)
        if outcome is not None:
            return str(outcome)
    return None


def _show_mixed_tree() -> str | None:
    import optax

    return demo.one_step(optax.clip_by_global_norm(1.0), demo.shapes(jnp.bfloat16, jnp.float32))


def _show_mixed_updates() -> str | None:
    tx = _normalize()
    return tx and demo.one_step(tx, demo.shapes(jnp.bfloat16, jnp.float32))


def _show_array_max_norm() -> str | None:
    import optax

    return demo.one_step(optax.clip_by_global_norm(np.float32(1)), demo.shapes(jnp.bfloat16))


def _in_half(norm: Callable[..., Any], tree: PyTree) -> str | None:
    """The first operation of a norm that is done in half precision."""
    operations = ("add", "mul", "square", "integer_pow", "sqrt")
    for equation in equations(jax.make_jaxpr(norm)(tree).jaxpr):
        name, out = equation.primitive.name, equation.outvars[0].aval
        if name in operations and is_half(out):
            return f"{name} in {out.dtype}"
    return None


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """From 0.2.7 on ``global_norm`` is deprecated, from 0.2.5 on ``tree_l2_norm``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


_CLIPPING = ("optax.transforms._clipping", "optax._src.clipping")
_TREE_MATH = ("optax.tree_utils._tree_math",)
_PROJECTIONS = ("optax.projections._projections",)

PATCH = Patch(
    id="global_norm",
    summary=(
        "`global_norm`, `clip_by_global_norm`, `clip_by_block_rms`, `adaptive_grad_clip`, "
        "`scale_by_trust_ratio` (`lamb`, `lars`, `fromage`), `normalize_by_update_norm`, "
        "per-example clipping and tree norms: a float16 norm above 255 makes updates 0 or NaN, "
        "bfloat16 norms of many leaves are too small"
    ),
    independent=True,
    faults=(
        # 256 + 1 == 256 in bfloat16: the sum of 1,000 ones stops at 256, the norm at 16.
        Fault(
            "many_leaves",
            "the norm of many bfloat16 leaves is too small: clipped updates are too large",
            ">=0.1.2",
            _show_many_leaves,
            abstract=False,
            probe=_probe_sum,
        ),
        # 400^2 = 160000 is more than 65504, the largest float16 number.
        Fault(
            "overflow",
            "a float16 norm above 255 is infinite",
            ">=0.1.2",
            _show_overflow,
            abstract=False,
            probe=_probe_sum,
        ),
        # 1e-4^2 = 1e-8 is less than half of 6e-8, the smallest float16 number.
        Fault(
            "underflow",
            "a float16 norm of small numbers is 0",
            ">=0.1.2",
            _show_underflow,
            abstract=False,
            probe=_probe_sum,
        ),
        # 256 + 1 == 256 again, in squares or, for the norm of absolute values, as they are.
        Fault(
            "tree_norms",
            "tree_norm, tree_l2_norm and tree_l1_norm of many bfloat16 leaves are too small",
            ">=0.1.8",
            _show_tree_norms,
            abstract=False,
            probe=_probe_tree_norms,
        ),
        # 400^2 is infinite, as above; in what follows x / inf = 0 and inf / inf is nan.
        Fault(
            "safe_norms",
            "safe_norm and safe_root_mean_squares of float16 arrays are infinite",
            ">=0.1.2",
            _show_safe_norms,
            abstract=False,
        ),
        Fault(
            "unitwise_norm",
            "unitwise_norm of float16 arrays is infinite",
            ">=0.2.3",
            _show_unitwise_norm,
            abstract=False,
        ),
        Fault(
            "clip_by_global_norm",
            "float16 gradients of a norm above 255 are clipped to zero",
            ">=0.1.2",
            _show_clip_by_global_norm,
            abstract=False,
        ),
        Fault(
            "clip_by_block_rms",
            "float16 gradients above 255 are clipped to zero",
            ">=0.1.2",
            _show_clip_by_block_rms,
            abstract=False,
        ),
        Fault(
            "adaptive_grad_clip",
            "float16 gradients of a norm above 255 are clipped to zero, or to nan",
            ">=0.1.2",
            _show_adaptive_grad_clip,
            abstract=False,
        ),
        Fault(
            "trust_ratio",
            "scale_by_trust_ratio, and lamb and lars with it: nan for float16 norms above 255",
            ">=0.1.2",
            _show_trust_ratio,
            abstract=False,
        ),
        Fault(
            "normalize_by_update_norm",
            "float16 gradients of a norm above 255 become zero",
            ">=0.2.3",
            _show_normalize,
            abstract=False,
        ),
        Fault(
            "per_example",
            "float16 gradients of a norm above 255 are clipped to zero, example by example",
            ">=0.1.3",
            _show_per_example,
            abstract=False,
        ),
        Fault(
            "projections",
            "float16 points of a norm above 255 are projected to zero",
            ">=0.2.4",
            _show_projections,
            abstract=False,
        ),
        # t / norm has the wider dtype of the two, and ``lax.select`` takes one dtype only.
        Fault(
            "mixed_tree",
            "clip_by_global_norm on leaves of different dtypes: TypeError",
            "<0.1.3",
            _show_mixed_tree,
            "https://github.com/google-deepmind/optax/commit/504406a0",
        ),
        # As above, (t / norm) * max_norm.
        Fault(
            "array_max_norm",
            "clip_by_global_norm with a float32 max_norm on half-precision gradients: TypeError",
            ">=0.1.2",
            _show_array_max_norm,
        ),
        # bfloat16 divided by the norm of the whole tree, which is float32 if one leaf is.
        Fault(
            "mixed_updates",
            "normalize_by_update_norm on mixed trees: float32 updates for bfloat16 gradients",
            ">=0.2.3",
            _show_mixed_updates,
        ),
    ),
    targets=(
        Target(("optax._src.linear_algebra",), "global_norm", _norm, "<0.2.7"),  # Then tree_norm.
        Target(_TREE_MATH, "tree_l2_norm", _norm, ">=0.1.8,<0.2.5"),
        Target(_TREE_MATH, "tree_l1_norm", _norm, ">=0.2.3,<0.2.5"),
        Target(_TREE_MATH, "tree_norm", _norm, ">=0.2.5"),
        Target(("optax.tree_utils",), "__getattr__", _deprecated_name, ">=0.2.5"),
        Target(("optax._src.numerics",), "safe_norm", _norm),
        Target(("optax._src.numerics",), "safe_root_mean_squares", _norm),
        Target(_CLIPPING, "unitwise_norm", _norm, ">=0.2.3"),
        Target(_CLIPPING, "clip_by_global_norm", _transformation_in_one_dtype, "<0.1.3"),
        Target(_CLIPPING, "clip_by_global_norm", _transformation, ">=0.1.3"),
        Target(_CLIPPING, "clip_by_block_rms", _transformation),
        Target(_CLIPPING, "adaptive_grad_clip", _transformation_by_params),
        Target(_CLIPPING, "per_example_global_norm_clip", _per_example, ">=0.1.3"),
        Target(_CLIPPING, "per_example_layer_norm_clip", _per_example, ">=0.1.8"),
        Target(("optax._src.transform",), "scale_by_trust_ratio", _transformation_by_params),
        Target(("optax._src.transform",), "normalize_by_update_norm", _transformation, ">=0.2.3"),
        Target(_PROJECTIONS, "projection_l2_ball", _projection, ">=0.2.4"),
        Target(_PROJECTIONS, "projection_l2_sphere", _projection, ">=0.2.4"),
        Target(_PROJECTIONS, "projection_l1_ball", _projection, ">=0.2.4"),
    ),
)
