"""Reproduce the faults of ``sums``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._engine.patch import Reproducers
from . import _reproduce as demo

FAULTS = Reproducers()


def _probe_sum(optax: Any) -> str | None:
    return demo.describe_half(demo.public(optax, "tree_utils.tree_sum"), demo.shapes(jnp.bfloat16))


@FAULTS.computed(probe=_probe_sum)
def tree_sum(optax: Any) -> str | None:
    """tree.sum of 1,000 bfloat16 leaves is 256, and so is tree.vdot."""
    found = demo.public(optax, "tree_utils.tree_sum")(demo.thousand_ones())
    dot = demo.public(optax, "tree_utils.tree_vdot")(demo.thousand_ones(), demo.thousand_ones())
    return demo.wrong("the sum of 1,000 ones", found, 1000) or demo.wrong(
        "their product", dot, 1000
    )


@FAULTS.computed()
def skip_large_updates(optax: Any) -> str | None:
    """skip_large_updates in float16 skips every update with a norm above 255."""
    function = demo.public(optax, "skip_large_updates")
    updates = np.full(4, 200, np.float16)
    skip = demo.compiled(lambda updates: function(updates, 0, updates, 1e6)[0], updates)
    return "a squared norm of 160000 counts as above 1e6" if skip else None


@FAULTS.computed()
def microbatch(optax: Any) -> str | None:
    """In bfloat16, microbatch gives 4,096 ones the sum 256 and the mean 0.0625."""
    function = demo.public(optax, "microbatching.microbatch")
    mean = demo.public(optax, "microbatching.AccumulationType").MEAN
    averaged = function(lambda x: x.sum(), 0, 1, mean)
    return demo.wrong("the mean of ones", demo.compiled(averaged, np.ones(4096, jnp.bfloat16)), 1)


@FAULTS.computed()
def projection(optax: Any) -> str | None:
    """In bfloat16, projection_simplex gives 3,000 numbers from 0 to 100 a sum of 5.5 or 62."""
    project = demo.public(optax, "projections.projection_simplex")
    numbers = np.linspace(0, 100, 3000).astype(jnp.bfloat16)
    return demo.wrong("the sum", demo.compiled(project, numbers).astype(np.float32).sum(), 1)


@FAULTS.computed()
def cosine_similarity(optax: Any) -> str | None:
    """cosine_similarity in float16 of vectors with a norm above 255 is 0."""
    vector = np.full(4, 400, np.float16)
    found = demo.compiled(optax.cosine_similarity, vector, vector)
    return demo.wrong("the similarity of equal vectors", found, 1)


@FAULTS.computed()
@demo.no_warnings()  # Deprecated from 0.2.7 on.
def hessian_diag(optax: Any) -> str | None:
    """hessian_diag of half-precision params: TypeError."""
    names = ("second_order.hessian_diag", "hessian_diag")  # The second until 0.1.8.
    function = next(iter(demo.all_public(optax, *names).values()))
    params = np.ones(3, jnp.bfloat16)
    found = demo.compiled(lambda p: function(lambda p, x, _: (x * p**2).sum(), p, p, p), params)
    return demo.wrong("the second derivative of p^2", found, 2)
