"""Measure calls of a patched function: eager, while tracing, and of the wrapper alone.

A stock and a patched process take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
from steps import quartiles

REPEATS = 7


def measure() -> dict[str, Any]:
    """Return seconds a call, stock and patched, and the difference."""
    turns = [[run(switch) for switch in ("off", "on")] for _ in range(REPEATS)]
    found = {}
    for name in turns[0][0]:
        stock, patched = (np.asarray([turn[way][name] for turn in turns]) for way in (0, 1))
        found[name] = {
            "stock": quartiles(stock),
            "patched": quartiles(patched),
            "more": quartiles(patched - stock),
        }
    return found


def run(switch: str) -> dict[str, float]:
    """Return the figures of one process."""
    command = [sys.executable, __file__]
    environment = {**os.environ, "OPTAX_DTYPEFIX": switch}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def calls() -> dict[str, float]:
    """Return seconds a call in this process."""
    import optax_dtypefix  # noqa: F401  # isort: skip

    import functools
    import time

    import jax
    import jax.numpy as jnp
    import optax

    from optax_dtypefix._engine.wrapper import PatchedFunction

    def seconds(function: Any, *args: Any, times: int = 30) -> float:
        function(*args)
        start = time.perf_counter()
        for _ in range(times):
            function(*args)
        return (time.perf_counter() - start) / times

    params = {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}

    def trace(tx: Any) -> Any:
        state = tx.init(params)
        # A new function each time, because JAX keeps the trace of an old one.
        return lambda: jax.make_jaxpr(functools.partial(tx.update))(params, state)

    def nothing(*args: Any) -> None:
        del args

    wrapped = PatchedFunction(nothing)
    wrapped._self_set_layers([lambda stock, *args: stock(*args)])
    either = wrapped if os.environ["OPTAX_DTYPEFIX"] == "on" else nothing
    adam, clip = optax.adam(0.1), optax.clip_by_global_norm(1.0)
    return {
        "a function that does nothing, and one layer": seconds(either, 1, times=100_000),
        "building adam": seconds(optax.adam, 0.1, times=300),
        "eager: adam": seconds(adam.update, params, adam.init(params)),
        "eager: clip_by_global_norm": seconds(clip.update, params, clip.init(params)),
        "traced: x + 1": seconds(lambda: jax.make_jaxpr(lambda x: x + 1)(params["b"]), times=300),
        "traced: adam": seconds(trace(adam)),
        "traced: clip_by_global_norm": seconds(trace(clip)),
        "traced: MultiSteps(adam)": seconds(trace(optax.MultiSteps(adam, 4))),
    }


if __name__ == "__main__":
    print(json.dumps(calls()))
