"""Workers that run specs: one process with stock optax, one with patched optax.

A worker reads requests and writes outcomes, a line of JSON each; ``python -m
evidence.differential.workers`` is a worker, and :class:`Workers` starts both. Stock and patched
functions never share a process, so they cannot share a trace. The reference runs on stock, too.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
from typing import Any

from support.processes import CACHE, PATCHED, QUICKLY, STOCK, TESTS, environment

Outcome = dict[str, Any]
"""Either ``error``, or for each step the updates: dtype, shape and values of each leaf."""


class Workers:
    """Both ways of running a spec.

    Args:
      ways: environments of the two workers; stock and patched by default.
    """

    def __init__(self, *ways: dict[str, str]) -> None:
        self._ways = ways or (STOCK, PATCHED)
        self._running = list(map(_start, self._ways))
        self._specs = 0

    def stock_and_patched(self, spec: Any) -> tuple[Outcome, Outcome]:
        self._specs += 1
        if self._specs % 300 == 0:  # The compiled programs take more than a gigabyte by then.
            self.close()
            self._running = list(map(_start, self._ways))
        for worker in self._running:
            _send(worker, spec=spec, exact="")
        stock, patched = map(_answer, self._running)
        return stock, patched

    def stock(self, spec: Any) -> Outcome:
        _send(self._running[0], spec=spec, exact="")
        return _answer(self._running[0])

    def reference(self, spec: Any, exact: str, **nudged: Any) -> Outcome:
        _send(self._running[0], spec=spec, exact=exact, **nudged)
        return _answer(self._running[0])

    def close(self) -> None:
        for worker in self._running:
            worker.communicate()


def _start(variables: dict[str, str]) -> Any:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "evidence.differential.workers"],
        cwd=TESTS,
        env=environment(**CACHE, **QUICKLY, **variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _send(worker: Any, **request: Any) -> None:
    worker.stdin.write(json.dumps(request) + "\n")
    worker.stdin.flush()


def _answer(worker: Any) -> Outcome:
    line = worker.stdout.readline()
    assert line, "the worker died"
    outcome: Outcome = json.loads(line)
    return outcome


def outcome(spec: Any, *, exact: str, nudges: Any = None, run: int = 0) -> Outcome:
    """Return the updates of all steps of a spec, or its error."""
    import jax

    from evidence.differential import building
    from optax_dtypefix._contract.x64 import x64

    with contextlib.ExitStack() as modes:
        if exact == "float64" or (spec["x64"] and not exact):
            modes.enter_context(x64())
        try:
            problem = building.Problem(spec, exact=exact, nudges=nudges, run=run)
            tx = building.transformation(problem)
            steps = []
            state = tx.init(problem.params(0))
            first = sorted({str(getattr(x, "dtype", "")) for x in jax.tree_util.tree_leaves(state)})
            for step in range(spec["steps"]):
                arguments = (problem.grads(step), state, problem.params(step))
                update = _step(tx, problem, step)
                mode = "reference" if exact else spec["mode"]
                updates, state = _MODES[mode](update, *arguments)
                steps.append([_encoded(leaf) for leaf in jax.tree_util.tree_leaves(updates)])
        except Exception as error:  # An error of optax is the outcome.
            return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"steps": steps, "state": first}


def _step(tx: Any, problem: Any, step: int) -> Any:
    extra_args = problem.extra_args(step)
    given = problem.spec["params_given"]

    def update(grads: Any, state: Any, params: Any) -> Any:
        return tx.update(grads, state, params if given else None, **extra_args)

    return update


def _traced(update: Any, *arguments: Any) -> Any:
    """Trace ``update``, and run it op by op: compiling branches and loops takes most of the time.

    Tracing shows whether the branches agree, and gives the dtypes.
    """
    import jax

    leaves, treedef = jax.tree_util.tree_flatten(arguments)

    def on_leaves(leaves: Any) -> Any:  # A user-defined node may refuse abstract leaves.
        return jax.tree_util.tree_leaves(update(*treedef.unflatten(leaves)))

    shapes = jax.eval_shape(on_leaves, leaves)
    results, treedef_of_results = jax.tree_util.tree_flatten(_op_by_op(update, *arguments))
    return treedef_of_results.unflatten(
        [
            leaf.astype(s.dtype) if hasattr(leaf, "dtype") and leaf.dtype != s.dtype else leaf
            for leaf, s in zip(results, shapes)
        ]
    )


def _op_by_op(update: Any, *arguments: Any) -> Any:
    import jax

    with jax.disable_jit():
        return update(*arguments)


def _compiled(update: Any, *arguments: Any) -> Any:
    import jax

    return jax.jit(update)(*arguments)


_MODES = {
    "reference": _op_by_op,
    "traced": _traced,
    "jit": _compiled,
    "eager": lambda update, *arguments: update(*arguments),
}


def _encoded(leaf: Any) -> Any:
    import numpy as np

    array = np.asarray(leaf)
    if array.dtype.kind != "c":
        array = array.astype(np.float64)
    content = array.astype(np.complex128).tobytes()
    return [str(leaf.dtype), list(array.shape), base64.b64encode(content).decode()]


def main() -> None:
    import optax_dtypefix  # noqa: F401  # isort: skip

    # Only lines of JSON go to the real standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(outcome(**json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
