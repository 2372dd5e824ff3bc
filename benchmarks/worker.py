"""Run one case in one process: report what is compiled, then time as many steps as requested.

Run as ``worker.py CASE DTYPE``. Each input line is a size, which builds a step for as many params
and reports in JSON, or a number of steps, which reports seconds.
"""

from __future__ import annotations

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import hashlib
import json
import re
import resource
import sys
import time
from typing import Any, Callable

import jax
import numpy as np
import optax
from cases import CASES, Case, loss, params_of

INSTRUCTION = re.compile(r"^ *(?:ROOT )?%?[\w.\-]+ = ", re.MULTILINE)
FLOAT64_ARRAY = re.compile(r"\bf64\[\d")


def train_step(case: Case, tx: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return a step from params and state to the next ones."""

    def step(params: Any, state: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params)
        extra = {"value": value, "loss": value, "grad": grads, "value_fn": loss}
        given = {name: extra[name] for name in case.takes}
        updates, new_state = tx.update(grads, state, params, **given)
        return optax.apply_updates(params, updates), new_state

    return step


class Step:
    """A train step for params of one size, and the carry to start from."""

    def __init__(self, case: Case, size: int, dtype: str) -> None:
        tx, params = case.build(), params_of(size, dtype)
        self._traces = 0

        one_step = train_step(case, tx)

        def step(params: Any, state: Any) -> Any:
            self._traces += 1
            return one_step(params, state)

        self._step: Callable[..., Any] = jax.jit(step)
        self._carry = params, tx.init(params)

    def about(self) -> dict[str, Any]:
        """Report what is compiled, and what later steps return."""
        state_bytes = bytes_of(self._carry[1])
        start = time.perf_counter()
        lowered = self._step.lower(*self._carry)
        traced = time.perf_counter()
        compiled = lowered.compile()
        ready = time.perf_counter()
        text, cost = compiled.as_text(), compiled.cost_analysis()
        cost = cost[0] if isinstance(cost, list) else cost
        carry = self._run(3)  # The first trace is that of ``lower``.
        return {
            "program": hashlib.sha256(without_metadata(text).encode()).hexdigest()[:16],
            "traces": self._traces,
            "trace_s": traced - start,
            "compile_s": ready - traced,
            "instructions": len(INSTRUCTION.findall(text)),
            "float64": FLOAT64_ARRAY.search(text) is not None,
            "bytes_accessed": cost.get("bytes accessed"),
            "state_bytes": state_bytes,
            "state_bytes_later": bytes_of(carry[1]),
            "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    def seconds(self, steps: int) -> float:
        """Return seconds a step, over this many steps."""
        start = time.perf_counter()
        self._run(steps)
        return (time.perf_counter() - start) / steps

    def _run(self, steps: int) -> Any:
        carry = self._carry
        for _ in range(steps):
            carry = self._step(*carry)
        return jax.block_until_ready(carry)


def without_metadata(text: str) -> str:
    """Remove names of source files and lines from a program: the shim's frames change them."""
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    return "\n".join(line for line in text.splitlines() if not re.match(r"\d+ |[A-Z]\w+$", line))


def bytes_of(tree: Any) -> int:
    """Count the bytes of all leaves."""
    return sum(
        np.dtype(leaf.dtype).itemsize * leaf.size for leaf in jax.tree_util.tree_leaves(tree)
    )


def main(name: str, dtype: str) -> None:
    """Serve one case until standard input ends."""
    step: Any = None
    for line in sys.stdin:
        kind, number = line.split()
        if kind == "steps":
            answer: Any = step.seconds(int(number))
        else:
            step = None  # Free its arrays before the next size.
            try:
                step = Step(CASES[name], int(number), dtype)
                answer = step.about()
            except Exception as error:
                first = str(error).strip().partition("\n")[0]
                answer = {"raises": f"{type(error).__name__}: {first}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
