"""Reproduce the faults of ``stochastic_rounding``."""

from __future__ import annotations

from typing import Any, Callable

import jax
import numpy as np

from . import _reproduce as demo

_STEPS, _SIZE = 1000, 256
# As of batches. Where steps repeat and nothing counts them, params that stay would stay for ever.
_NOISE = 1 + 0.5 * np.random.default_rng(0).normal(size=(_STEPS, _SIZE)).astype(np.float32)
_UPDATES, _NEW = 1e-4 * _NOISE, (2 + 0.01 * (_NOISE - 1)).astype("bfloat16")


_ONES = np.ones(_SIZE, "bfloat16")
_ROUNDS = demo.wrong_dtype(  # Each step rounds such params.
    "apply_updates keeps params in bfloat16",
    "apply_updates rounds to {}",
    lambda optax: jax.eval_shape(optax.apply_updates, _ONES, _UPDATES[0]),
)


def _mean_after(
    step: Callable[[Any, Any, Any], Any], given: np.ndarray[Any, Any]
) -> Callable[[Any], Any]:
    """Return a function that takes a step from ones for each row: ``step(package, ones, row)``."""

    def compute(optax: Any) -> Any:
        def run(start: Any, rows: Any) -> Any:
            return jax.lax.scan(lambda x, row: (step(optax, x, row), None), start, rows)[0]

        return demo.compiled(run, _ONES, given).astype(np.float64).mean()

    return compute


FAULTS = {
    "small_updates": demo.number(
        "In bfloat16, 1,000 updates of about 0.0001 do not move params of 1",
        "after 1000 updates the mean of the params is {:.3g}, not {:.3g}",
        _mean_after(lambda optax, params, row: optax.apply_updates(params, row), _UPDATES),
        1.1,
    )._replace(probe=_ROUNDS.run),
    "slow_average": demo.number(
        "In bfloat16, 1,000 steps of incremental_update do not move an average by a small share",
        "after 1000 steps the mean of the average is {:.3g}, not {:.3g}",
        _mean_after(lambda optax, old, new: optax.incremental_update(new, old, 1e-3), _NEW),
        2 - 0.999**_STEPS,
    ),
}
