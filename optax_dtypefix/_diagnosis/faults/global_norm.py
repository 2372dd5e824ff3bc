"""Reproduce the faults of ``global_norm``."""

from __future__ import annotations

from typing import Any, Callable

import jax.numpy as jnp
import numpy as np

from ..._engine.patch import Reproducer, Reproducers
from . import _reproduce as demo

# 4 elements of 400: the norm is 800, and one square, 160000, is more than 65504 already.
_LARGE = {"b": np.full(4, 400, np.float16)}
_NO_GRADIENTS = {"b": np.zeros(4, np.float32)}
_THOUSAND = 1000**0.5


@demo.no_warnings()  # global_norm is deprecated from 0.2.7 on, tree_l2_norm from 0.2.5 on.
def _probe_sum(optax: Any) -> str | None:
    return demo.describe_half(optax.global_norm, demo.shapes(jnp.bfloat16))


@demo.no_warnings()
def _tree_norms(optax: Any) -> dict[str, Any]:
    names = ("tree_norm", "tree_l2_norm", "tree_l1_norm")
    return demo.all_public(optax, *(f"tree_utils.{name}" for name in names))


def _probe_tree_norms(optax: Any) -> str | None:
    params = demo.shapes(jnp.bfloat16)
    return demo.first_named(lambda norm: demo.describe_half(norm, params), _tree_norms(optax))


def _norm(summary: str, compute: Callable[[Any], Any], exact: float) -> Reproducer:
    return demo.number(summary, "the norm", compute, exact)


def _update(summary: str, build: Callable[[Any], Any], exact: float) -> Reproducer:
    """Reproduce a wrong update for the large gradients."""

    def compute(optax: Any) -> Any:
        return demo.first_updates(build(optax), _LARGE)["b"]

    return demo.number(summary, "an update", compute, exact)


def _normalize(optax: Any) -> Any:
    return demo.public(optax, "normalize_by_update_norm")()


FAULTS = Reproducers(
    # 256 + 1 == 256 in bfloat16: the sum of 1,000 ones stops at 256, the norm at 16.
    many_leaves=demo.number(
        "Norms of many bfloat16 leaves are too small, so clipped updates are too large",
        "the norm of 1,000 leaves of 1",
        lambda optax: optax.global_norm(demo.thousand_ones()),
        _THOUSAND,
    )._replace(probe=_probe_sum),
    # 400^2 = 160000 is more than 65504, the largest float16 number.
    overflow=_norm(
        "float16 norms above 255 are infinite",
        lambda optax: demo.compiled(optax.global_norm, _LARGE),
        800,
    )._replace(probe=_probe_sum),
    # 1e-4^2 = 1e-8 is less than half of 6e-8, the smallest float16 number.
    underflow=_norm(
        "float16 norms of small numbers are 0",
        lambda optax: demo.compiled(optax.global_norm, np.full(4, 1e-4, np.float16)),
        2e-4,
    )._replace(probe=_probe_sum),
    unitwise_norm=_norm(
        "unitwise_norm of float16 arrays is infinite",
        lambda optax: demo.compiled(demo.public(optax, "transforms.unitwise_norm"), _LARGE["b"]),
        800,
    ),
    clip_by_global_norm=_update(
        "clip_by_global_norm clips float16 gradients of a norm above 255 to zero",
        lambda optax: optax.clip_by_global_norm(1.0),
        0.5,
    ),
    clip_by_block_rms=_update(
        "clip_by_block_rms clips float16 gradients above 255 to zero",
        lambda optax: optax.clip_by_block_rms(1.0),
        1,
    ),
    adaptive_grad_clip=_update(
        "adaptive_grad_clip clips float16 gradients of a norm above 255 to zero or NaN",
        lambda optax: optax.adaptive_grad_clip(0.5),
        200,
    ),
    trust_ratio=_update(
        "scale_by_trust_ratio, lamb and lars give NaN for float16 norms above 255",
        lambda optax: optax.scale_by_trust_ratio(),
        400,
    ),
    normalize_by_update_norm=_update(
        "normalize_by_update_norm scales float16 gradients of a norm above 255 to zero",
        _normalize,
        0.5,
    ),
    # t / norm has the wider dtype of the two, and ``lax.select`` takes one dtype only.
    mixed_tree=demo.step(
        "clip_by_global_norm on leaves of different dtypes: TypeError",
        lambda optax: optax.clip_by_global_norm(1.0),
        *(jnp.bfloat16, jnp.float32),
    ),
    # A bfloat16 leaf is divided by the norm of the whole tree, which is float32 if one leaf is.
    mixed_updates=demo.step(
        "normalize_by_update_norm on mixed trees: float32 updates for bfloat16 gradients",
        _normalize,
        *(jnp.bfloat16, jnp.float32),
    ),
    # (t / norm) * max_norm is float32, and ``lax.select`` takes one dtype only.
    array_max_norm=demo.step(
        "clip_by_global_norm with a float32 max_norm on half-precision gradients: TypeError",
        lambda optax: optax.clip_by_global_norm(np.float32(1)),
        jnp.bfloat16,
    ),
)


@FAULTS.computed(probe=_probe_tree_norms)
def tree_norms(optax: Any) -> str | None:
    """tree_norm, tree_l2_norm and tree_l1_norm of many bfloat16 leaves are too small.

    256 + 1 == 256, in the sum of squares or of absolute values.
    """
    return demo.first(
        demo.wrong(
            f"{name} of 1,000 leaves of 1",
            norm(demo.thousand_ones()),
            1000 if "l1" in name else _THOUSAND,
        )
        for name, norm in _tree_norms(optax).items()
    )


@FAULTS.computed()
def safe_norms(optax: Any) -> str | None:
    """safe_norm and safe_root_mean_squares of float16 arrays are infinite.

    400^2 is infinite. Later x / inf = 0 and inf / inf is nan.
    """
    x = _LARGE["b"]
    return demo.wrong("safe_norm", demo.compiled(optax.safe_norm, x, 0.0), 800) or demo.wrong(
        "safe_root_mean_squares", demo.compiled(optax.safe_root_mean_squares, x, 0.0), 400
    )


@FAULTS.computed()
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


@FAULTS.computed()
def projections(optax: Any) -> str | None:
    """projection_l2_ball and projection_l2_sphere give zero for float16 norms above 255."""
    project = demo.public(optax, "projections.projection_l2_ball")
    onto = demo.public(optax, "projections.projection_l2_sphere")
    return demo.wrong("projection_l2_ball", demo.compiled(project, _LARGE)["b"], 0.5) or demo.wrong(
        "projection_l2_sphere", demo.compiled(onto, _LARGE)["b"], 0.5
    )


@FAULTS.computed()
def zero_limit(optax: Any) -> str | None:
    """clip_by_global_norm(0) and clip_by_block_rms(0) give NaN for gradients of 0.

    0/0 is nan, and 0 times nan too. A schedule of the limit may end at 0.
    """
    names = ("clip_by_global_norm", "clip_by_block_rms")
    return demo.first_named(
        lambda clip: demo.not_finite(
            "the update is NaN", demo.first_updates(clip(0.0), _NO_GRADIENTS)
        ),
        demo.all_public(optax, *names),
    )


@FAULTS.computed()
def normalize_zero(optax: Any) -> str | None:
    """contrib.normalize gives NaN for gradients of 0, and so does SAM."""
    tx = demo.public(optax, "contrib.normalize")()
    return demo.not_finite("the update is NaN", demo.first_updates(tx, _NO_GRADIENTS))
