"""Reproduce the faults of ``global_norm``."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ..probes import Reproducer
from . import _reproduce as demo

# 4 elements of 400: the norm is 800, and one square, 160000, is more than 65504 already.
_LARGE = {"b": np.full(4, 400, np.float16)}
_NO_GRADIENTS = {"b": np.zeros(4, np.float32)}
_THOUSAND = 1000**0.5


_SUMS_IN_HALF = demo.operation(
    "global_norm adds in half precision",
    lambda optax: optax.global_norm,
    demo.is_in_half,
    demo.shapes("bfloat16"),
)


def _tree_norms(optax: Any) -> dict[str, Any]:
    names = ("tree_norm", "tree_l2_norm", "tree_l1_norm")
    return demo.all_public(optax, *(f"tree_utils.{name}" for name in names))


_TREE_NORMS_IN_HALF = demo.operation(
    "A norm of a tree adds in half precision",
    _tree_norms,
    demo.is_in_half,
    demo.shapes("bfloat16"),
)


def _update(summary: str, build: Callable[[Any], Any], exact: float) -> Reproducer:
    """Reproduce a wrong update for the large gradients."""

    def compute(optax: Any) -> Any:
        return demo.first_updates(build(optax), _LARGE)["b"]

    return demo.number(summary, "an update", compute, exact)


def _normalize(optax: Any) -> Any:
    return demo.public(optax, "normalize_by_update_norm")()


def _tree_norms_by_exact(optax: Any) -> dict[str, Any]:
    ones = demo.thousand_ones()
    return {
        name: norm(ones) / (1000 if "l1" in name else _THOUSAND)
        for name, norm in _tree_norms(optax).items()
    }


def _safe_norms(optax: Any) -> dict[str, Any]:
    return {
        "half of safe_norm": demo.compiled(optax.safe_norm, _LARGE["b"], 0.0) / 2,
        "safe_root_mean_squares": demo.compiled(optax.safe_root_mean_squares, _LARGE["b"], 0.0),
    }


def _clipped_examples(optax: Any) -> dict[str, Any]:
    names = ("per_example_global_norm_clip", "per_example_layer_norm_clip")
    grads = np.full((2, 4), 400, np.float16)
    return {
        name: demo.compiled(lambda g, clip=clip: clip([g], 1.0)[0], grads)
        for name, clip in demo.all_public(optax, *names).items()
    }


def _projections(optax: Any) -> dict[str, Any]:
    names = (f"projections.projection_l2_{name}" for name in ("ball", "sphere"))
    return {
        name: demo.compiled(project, _LARGE)["b"]
        for name, project in demo.all_public(optax, *names).items()
    }


def _clipped_to_zero(optax: Any) -> dict[str, Any]:
    clips = demo.all_public(optax, "clip_by_global_norm", "clip_by_block_rms")
    return {name: demo.first_updates(clip(0.0), _NO_GRADIENTS) for name, clip in clips.items()}


FAULTS = {
    # 256 + 1 == 256 in bfloat16: the sum of 1,000 ones stops at 256, the norm at 16.
    "many_leaves": demo.number(
        "Norms of many bfloat16 leaves are too small, so clipped updates are too large",
        "the norm of 1,000 leaves of 1",
        lambda optax: optax.global_norm(demo.thousand_ones()),
        _THOUSAND,
    )._replace(probe=_SUMS_IN_HALF.run),
    # 400^2 = 160000 is more than 65504, the largest float16 number.
    "overflow": demo.number(
        "float16 norms above 255 are infinite",
        "the norm",
        lambda optax: demo.compiled(optax.global_norm, _LARGE),
        800,
    )._replace(probe=_SUMS_IN_HALF.run),
    # 1e-4^2 = 1e-8 is less than half of 6e-8, the smallest float16 number.
    "underflow": demo.number(
        "float16 norms of small numbers are 0",
        "the norm",
        lambda optax: demo.compiled(optax.global_norm, np.full(4, 1e-4, np.float16)),
        2e-4,
    )._replace(probe=_SUMS_IN_HALF.run),
    "unitwise_norm": demo.number(
        "unitwise_norm of float16 arrays is infinite",
        "the norm",
        lambda optax: demo.compiled(demo.public(optax, "transforms.unitwise_norm"), _LARGE["b"]),
        800,
    ),
    "clip_by_global_norm": _update(
        "clip_by_global_norm clips float16 gradients of a norm above 255 to zero",
        lambda optax: optax.clip_by_global_norm(1.0),
        0.5,
    ),
    "clip_by_block_rms": _update(
        "clip_by_block_rms clips float16 gradients above 255 to zero",
        lambda optax: optax.clip_by_block_rms(1.0),
        1,
    ),
    "adaptive_grad_clip": _update(
        "adaptive_grad_clip clips float16 gradients of a norm above 255 to zero or NaN",
        lambda optax: optax.adaptive_grad_clip(0.5),
        200,
    ),
    "trust_ratio": _update(
        "scale_by_trust_ratio, lamb and lars give NaN for float16 norms above 255",
        lambda optax: optax.scale_by_trust_ratio(),
        400,
    ),
    "normalize_by_update_norm": _update(
        "normalize_by_update_norm scales float16 gradients of a norm above 255 to zero",
        _normalize,
        0.5,
    ),
    # t / norm has the wider dtype of the two, and ``lax.select`` takes one dtype only.
    "mixed_tree": demo.step(
        "clip_by_global_norm on leaves of different dtypes: TypeError",
        lambda optax: optax.clip_by_global_norm(1.0),
        *("bfloat16", "float32"),
    ),
    # A bfloat16 leaf is divided by the norm of the whole tree, which is float32 if one leaf is.
    "mixed_updates": demo.step(
        "normalize_by_update_norm on mixed trees: float32 updates for bfloat16 gradients",
        _normalize,
        *("bfloat16", "float32"),
    ),
    # (t / norm) * max_norm is float32, and ``lax.select`` takes one dtype only.
    "array_max_norm": demo.step(
        "clip_by_global_norm with a float32 max_norm on half-precision gradients: TypeError",
        lambda optax: optax.clip_by_global_norm(np.float32(1)),
        "bfloat16",
    ),
    # 256 + 1 == 256, in the sum of squares or of absolute values.
    "tree_norms": demo.number(
        "tree_norm, tree_l2_norm and tree_l1_norm of many bfloat16 leaves are too small",
        "as a share of the exact norm, that of 1,000 leaves of 1",
        _tree_norms_by_exact,
        1,
    )._replace(probe=_TREE_NORMS_IN_HALF.run),
    # 400^2 is infinite. Later x / inf = 0 and inf / inf is nan.
    "safe_norms": demo.number(
        "safe_norm and safe_root_mean_squares of float16 arrays are infinite",
        "the result",
        _safe_norms,
        400,
    ),
    "per_example": demo.number(
        "Per-example clipping clips float16 gradients of a norm above 255 to zero",
        "the sum",
        _clipped_examples,
        1,
    ),
    "projections": demo.number(
        "projection_l2_ball and projection_l2_sphere give zero for float16 norms above 255",
        "the projection",
        _projections,
        0.5,
    ),
    # 0/0 is nan, and 0 times nan too. A schedule of the limit may end at 0.
    "zero_limit": demo.not_finite(
        "clip_by_global_norm(0) and clip_by_block_rms(0) give NaN for gradients of 0",
        "the update is NaN",
        _clipped_to_zero,
    ),
    "normalize_zero": demo.not_finite(
        "contrib.normalize gives NaN for gradients of 0, and so does SAM",
        "the update is NaN",
        lambda optax: demo.first_updates(demo.public(optax, "contrib.normalize")(), _NO_GRADIENTS),
    ),
}
