"""Reproduce moments that stall in bfloat16: each stands in the table of two patches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _reproduce as demo


def last_update(tx: Any, gradients: Any) -> Any:
    """Return the last update of a bfloat16 param for these gradients, one a step."""
    params = np.ones((4, 4), jnp.bfloat16)

    # Without a stack of all updates: XLA on the CPU would copy bfloat16 stacks in each step.
    def run(params: Any, gradients: Any) -> Any:
        def step(state: Any, gradient: Any) -> tuple[Any, None]:
            return tx.update(gradient, state, params)[1], None

        state, _ = jax.lax.scan(step, tx.init(params), gradients[:-1])
        return tx.update(gradients[-1], state, params)[0]

    gradients = np.multiply.outer(np.asarray(gradients), params).astype(params.dtype)
    return demo.compiled(run, params, gradients)


def stalled_moment(optax: Any) -> str | None:
    """In bfloat16, with steady gradients, updates of adam are 1.4 times too large.

    v = 0.5 has neighbours 2^-8 apart above it: 0.001 (1 - 0.5) = 0.0005 is rounded away.
    """
    got = last_update(optax.scale_by_adam(), [1.0] * 5000)
    return demo.wrong("after 5000 gradients of 1 the update is {:.3g}, not 1", got, 1.0)


def stalled_decay(optax: Any) -> str | None:
    """In bfloat16, after large gradients, updates of adam for small ones are far too small.

    0.999 v rounds to v, so v never falls.
    """
    got = last_update(optax.scale_by_adam(), [1.0] * 200 + [0.001] * 8000)
    text = "after 200 gradients of 1 and 8000 of 0.001 the update is {:.3g}, not 0.127"
    return demo.wrong(text, got, 0.1274, rtol=0.1)


def stalled_factors(optax: Any) -> str | None:
    """In bfloat16 the factors of adafactor's second moment stall.

    As in adam, but with a decay that tends to 1. Up to 0.2.3 the factors are float32.
    """
    tx = optax.scale_by_factored_rms(min_dim_size_to_factor=2)
    got = last_update(tx, [1.0] * 100 + [2.0] * 1900)
    return demo.wrong("after 100 gradients of 1 and 1900 of 2 the update is {:.3g}, not 1", got, 1)


def stalled_ema(optax: Any) -> str | None:
    """In bfloat16, ema(0.999) of ones ends at 0.5."""
    got = last_update(optax.ema(0.999, debias=False), [1.0] * 10000)
    return demo.wrong("after 10000 ones the average is {:.3g}", got, 1.0)


def stalled_sum(optax: Any) -> str | None:
    """In bfloat16, apply_every(1000) sums 1,000 ones to 256."""
    got = last_update(optax.apply_every(1000), [1.0] * 1000)
    return demo.wrong("the sum of 1000 ones is {:.4g}", got, 1000.0)


def stalled_trace(optax: Any) -> str | None:
    """In bfloat16, trace(0.99) of gradients of about 1 ends below its limit of 100."""
    gradients = np.random.default_rng(0).choice([0.5, 1.0, 1.5], 2000)
    got = last_update(optax.trace(0.99), gradients)
    exact = 0.0
    for gradient in gradients:
        exact = 0.99 * exact + gradient
    return demo.wrong("after 2000 gradients the trace is {:.3g}, not {:.3g}", got, exact, rtol=0.05)
