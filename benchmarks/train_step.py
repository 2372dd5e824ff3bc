"""Time a whole train step with ``stochastic_rounding``: the transformer of the long runs.

Run as ``python benchmarks/train_step.py [ROUNDS]``. Prints JSON: milliseconds a step, forward and
backward, with bfloat16 params and the default patches, with stock's ``apply_updates`` and with the
rounding one. Both take turns in one process, so that other load on the machine hits both. The
ratio is that of the best rounds.
"""

from __future__ import annotations

import optax_dtypefix  # isort: skip  # First, as in a training script.

import json
import sys
import time
from pathlib import Path
from typing import Any, Callable

import jax
import jax.numpy as jnp
import optax

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from evidence.long_runs import text
from evidence.long_runs.ways import TRANSFORMER

STEPS = 20


def round_of(apply_updates: Callable[[Any, Any], Any]) -> Callable[[], float]:
    """Compile a train step; return a function that takes some steps, and gives seconds a step."""
    tx, params = TRANSFORMER.build(), text.start(jnp.bfloat16)
    batch = jnp.asarray(TRANSFORMER.batches()[0])

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        grads = jax.grad(text.loss_of)(params, batch)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state

    start = step(params, tx.init(params))

    def seconds() -> float:
        carry = jax.block_until_ready(start)
        began = time.perf_counter()
        for _ in range(STEPS):
            carry = step(*carry)
        jax.block_until_ready(carry)
        return (time.perf_counter() - began) / STEPS

    return seconds


def main(rounds: int = 20) -> None:
    """Time both ways in turns."""
    optax_dtypefix.apply("stochastic_rounding")
    rounding = optax.apply_updates
    ways = {"stock": optax_dtypefix.original(rounding), "stochastic_rounding": rounding}
    timed = {way: round_of(apply_updates) for way, apply_updates in ways.items()}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, seconds in timed.items():
            found[way].append(seconds())
    best = {way: min(times) for way, times in found.items()}
    ratio = round(best["stochastic_rounding"] / best["stock"], 3)
    print(json.dumps({"ms": {w: round(s * 1e3, 2) for w, s in best.items()}, "ratio": ratio}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
