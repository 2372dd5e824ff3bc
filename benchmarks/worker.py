"""One case in one process: says what was compiled, then times as many steps as it is told.

Run as ``worker.py WAY CASE DTYPE SIZE`` with WAY ``stock``, ``patched`` or ``cast back``: stock,
with the whole state cast to its first dtypes by hand after each step, as users do it. It reads
numbers of steps, and prints JSON, a line each.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from cases import CASES, loss, params_of

tree_map, leaves = jax.tree_util.tree_map, jax.tree_util.tree_leaves
INSTRUCTION = re.compile(r"^ *(?:ROOT )?%?[\w.\-]+ = ", re.MULTILINE)


def main(way: str, name: str, dtype: str, size: str) -> None:
    """Serves one case until its standard input ends."""
    case = CASES[name]
    tx, params = case.build(), params_of(int(size), dtype)
    traces = []

    def step(params: Any, state: Any) -> Any:
        traces.append(None)
        value, grads = jax.value_and_grad(loss)(params)
        given = {"value": value, "grad": grads, "value_fn": loss} if case.value else {}
        updates, new_state = tx.update(grads, state, params, **given)
        if way == "cast back":
            new_state = tree_map(lambda new, old: jnp.asarray(new, old.dtype), new_state, state)
        return optax.apply_updates(params, updates), new_state

    jitted = jax.jit(step)
    carry = params, tx.init(params)
    state_bytes = sum(np.asarray(leaf).nbytes for leaf in leaves(carry[1]))
    start = time.perf_counter()
    compiled = jitted.lower(*carry).compile()
    compile_s = time.perf_counter() - start
    text, cost = compiled.as_text(), compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    memory = compiled.memory_analysis()
    for _ in range(3):  # The first trace is that of ``lower``.
        carry = jitted(*carry)
    print(
        json.dumps(
            {
                "traces": len(traces),
                "compile_s": compile_s,
                "instructions": len(INSTRUCTION.findall(text)),
                "float64": "f64[" in text,
                "bytes_accessed": cost.get("bytes accessed", 0.0),
                "temporary_bytes": getattr(memory, "temp_size_in_bytes", 0),
                "state_bytes": state_bytes,
                "state_bytes_later": sum(leaf.nbytes for leaf in leaves(carry[1])),
            }
        ),
        flush=True,
    )
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            carry = jitted(*carry)
        jax.block_until_ready(carry)
        print(json.dumps(time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
