"""Reproduce the faults of ``sums``."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _reproduce as demo

_ADDS_IN_HALF = demo.operation(
    "tree_sum adds in half precision",
    lambda optax: demo.public(optax, "tree_utils.tree_sum"),
    demo.is_in_half,
    demo.shapes("bfloat16"),
)


def _sums(optax: Any) -> dict[str, Any]:
    add, dot = (demo.public(optax, f"tree_utils.tree_{name}") for name in ("sum", "vdot"))
    ones = demo.thousand_ones()
    return {"tree_sum": add(ones), "tree_vdot": dot(ones, ones)}


def _is_skipped(optax: Any) -> Any:
    skip = demo.public(optax, "skip_large_updates")
    return demo.compiled(lambda u: skip(u, 0, u, 1e6)[0], np.full(4, 200, np.float16))


def _mean(optax: Any) -> Any:
    mean = demo.public(optax, "microbatching.AccumulationType").MEAN
    averaged = demo.public(optax, "microbatching.microbatch")(lambda x: x.sum(), 0, 1, mean)
    return demo.compiled(averaged, np.ones(4096, "bfloat16"))


def _sum_of_projection(optax: Any) -> Any:
    project = demo.public(optax, "projections.projection_simplex")
    numbers = np.linspace(0, 100, 3000).astype("bfloat16")
    return demo.compiled(project, numbers).astype(np.float32).sum()


def _cosine(optax: Any) -> Any:
    vector = np.full(4, 400, np.float16)
    return demo.compiled(optax.cosine_similarity, vector, vector)


def _second_derivative(optax: Any) -> Any:
    names = ("second_order.hessian_diag", "hessian_diag")  # The second until 0.1.8.
    function = next(iter(demo.all_public(optax, *names).values()))
    params = np.ones(3, "bfloat16")
    return demo.compiled(lambda p: function(lambda p, x, _: (x * p**2).sum(), p, p, p), params)


FAULTS = {
    "tree_sum": demo.number(
        "tree.sum of 1,000 bfloat16 leaves is 256, and so is tree.vdot",
        "the sum of 1,000 ones",
        _sums,
        1000,
    )._replace(probe=_ADDS_IN_HALF.run),
    "skip_large_updates": demo.number(
        "skip_large_updates in float16 skips every update with a norm above 255",
        "a squared norm of 160000 counts as above 1e6: {:g}",
        _is_skipped,
        0,
    ),
    "microbatch": demo.number(
        "In bfloat16, microbatch gives 4,096 ones the sum 256 and the mean 0.0625",
        "the mean of ones",
        _mean,
        1,
    ),
    "projection": demo.number(
        "In bfloat16, projection_simplex gives 3,000 numbers from 0 to 100 a sum of 5.5 or 62",
        "the sum",
        _sum_of_projection,
        1,
    ),
    "cosine_similarity": demo.number(
        "cosine_similarity in float16 of vectors with a norm above 255 is 0",
        "the similarity of equal vectors",
        _cosine,
        1,
    ),
    "hessian_diag": demo.number(
        "hessian_diag of half-precision params: TypeError",
        "the second derivative of p^2",
        _second_derivative,
        2,
    ),
}
