"""Reproduce the faults of ``bfloat16_moments``: other patches fix some of them too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _reproduce as demo


def last_update(tx: Any, gradients: Any, dtype: str = "bfloat16") -> Any:
    """Return the last update of a param for these gradients, one a step."""
    params = np.ones((4, 4), dtype)

    # Without a stack of all updates: XLA on the CPU would copy bfloat16 stacks in each step.
    def run(params: Any, gradients: Any) -> Any:
        def step(state: Any, gradient: Any) -> tuple[Any, None]:
            return tx.update(gradient, state, params)[1], None

        state, _ = jax.lax.scan(step, tx.init(params), gradients[:-1])
        return tx.update(gradients[-1], state, params)[0]

    gradients = np.multiply.outer(np.asarray(gradients), params).astype(params.dtype)
    return demo.compiled(run, params, gradients)


def decayed_sum(terms: Any, decay: float) -> float:
    """Return the exact sum of terms, each times the decay for each term after it."""
    return float(np.dot(terms, decay ** np.arange(len(terms))[::-1]))


# It is rounded in each step.
_IN_BFLOAT16 = demo.wrong_dtype(
    "Stock keeps a moment in bfloat16",
    "scale_by_adam keeps nu in {}",
    lambda optax: demo.initial(optax.scale_by_adam(), "bfloat16").nu["w"],
)
_NEAR_ONE = np.random.default_rng(0).choice([0.5, 1.0, 1.5], 2000)
_FALLING = np.random.default_rng(0).normal(size=2000) * np.where(np.arange(2000) < 300, 1, 0.01)

FAULTS = {
    # v = 0.5 has neighbours 2^-8 apart above it: 0.001 (1 - 0.5) = 0.0005 is rounded away.
    "stalled_moment": demo.number(
        "In bfloat16, with steady gradients, updates of adam are 1.4 times too large",
        "after 5000 gradients of 1 the update is {:.3g}, not 1",
        lambda optax: last_update(optax.scale_by_adam(), [1.0] * 5000),
        1.0,
    )._replace(probe=_IN_BFLOAT16.run),
    # 0.999 v rounds to v, so v never falls.
    "stalled_decay": demo.number(
        "In bfloat16, after large gradients, updates of adam for small ones are far too small",
        "after 200 gradients of 1 and 8000 of 0.001 the update is {:.3g}, not 0.127",
        lambda optax: last_update(optax.scale_by_adam(), [1.0] * 200 + [0.001] * 8000),
        0.1274,
        rtol=0.1,
    ),
    # As in adam, but with a decay that tends to 1. Up to 0.2.3 the factors are float32.
    "stalled_factors": demo.number(
        "In bfloat16 the factors of adafactor's second moment stall",
        "after 100 gradients of 1 and 1900 of 2 the update is {:.3g}, not 1",
        lambda optax: last_update(
            optax.scale_by_factored_rms(min_dim_size_to_factor=2), [1.0] * 100 + [2.0] * 1900
        ),
        1.0,
    ),
    "stalled_ema": demo.number(
        "In bfloat16, ema(0.999) of ones ends at 0.5",
        "after 10000 ones the average is {:.3g}",
        lambda optax: last_update(optax.ema(0.999, debias=False), [1.0] * 10000),
        1.0,
    ),
    "stalled_sum": demo.number(
        "In bfloat16, apply_every(1000) sums 1,000 ones to 256",
        "the sum of 1000 ones is {:.4g}",
        lambda optax: last_update(optax.apply_every(1000), [1.0] * 1000),
        1000.0,
    ),
    "stalled_trace": demo.number(
        "In bfloat16, trace(0.99) of gradients of about 1 ends below its limit of 100",
        "after 2000 gradients the trace is {:.3g}, not {:.3g}",
        lambda optax: last_update(optax.trace(0.99), _NEAR_ONE),
        decayed_sum(_NEAR_ONE, 0.99),
        rtol=0.05,
    ),
    "requested_dtype": demo.number(
        "trace(0.99, accumulator_dtype=bfloat16) ends below its limit, in float32 problems too",
        "after 2000 float32 gradients the trace is {:.3g}, not {:.3g}",
        lambda optax: last_update(
            optax.trace(0.99, accumulator_dtype=jnp.bfloat16), _NEAR_ONE, "float32"
        ),
        decayed_sum(_NEAR_ONE, 0.99),
        rtol=0.05,
    ),
    "stalled_without_counter": demo.number(
        "In bfloat16, after large gradients, updates of rmsprop for small ones are too small",
        "after 300 gradients of about 1 and 1700 of 0.01 the update is {:.3g}, not {:.3g}",
        lambda optax: last_update(optax.scale_by_rms(decay=0.999), _FALLING),
        _FALLING[-1] * (0.001 * decayed_sum(_FALLING**2, 0.999)) ** -0.5,
        rtol=0.2,
    ),
}
