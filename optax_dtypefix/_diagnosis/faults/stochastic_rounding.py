"""Reproduce the faults of ``stochastic_rounding``."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from . import _reproduce as demo

# Not all the same: where nothing moves, the same step would follow.
_STEPS, _MOVED = 1000, np.linspace(0.9e-4, 1.1e-4, 256)


_ONES = np.ones(_MOVED.shape, "bfloat16")
_ROUNDS = demo.wrong_dtype(  # Each step rounds such params.
    "apply_updates keeps params in bfloat16",
    "apply_updates rounds to {}",
    lambda optax: jax.eval_shape(optax.apply_updates, _ONES, _MOVED.astype(np.float32)),
)


def _mean_after(step: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Return a function that takes steps from ones, each by ``step(package, params)``."""

    def compute(optax: Any) -> Any:
        def run(start: Any) -> Any:
            return jax.lax.fori_loop(0, _STEPS, lambda _, params: step(optax, params), start)

        return demo.compiled(run, _ONES).astype(np.float64).mean()

    return compute


FAULTS = {
    "small_updates": demo.number(
        "In bfloat16, 1,000 updates of about 0.0001 do not move params of 1",
        "after 1000 updates the mean of the params is {:.3g}, not {:.3g}",
        _mean_after(lambda optax, p: optax.apply_updates(p, _MOVED.astype(np.float32))),
        1.1,
    )._replace(probe=_ROUNDS.run),
    "slow_average": demo.number(
        "In bfloat16, 1,000 steps of incremental_update do not move an average by a small share",
        "after 1000 steps the mean of the average is {:.3g}, not {:.3g}",
        _mean_after(
            lambda optax, old: optax.incremental_update(
                jnp.asarray(1 + _MOVED * 1e4, "bfloat16"), old, 1e-3
            )
        ),
        2 - 0.999**_STEPS,
    ),
}
