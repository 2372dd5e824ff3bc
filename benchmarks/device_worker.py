"""Measure on the device that JAX finds, in one process: print a line of JSON for each result.

Run as ``device_worker.py PARAMS TRAINED SECONDS NAME...``, with ``OPTAX_DTYPEFIX=off`` for stock.
It ends when the seconds are over. TRAINED is the number of steps in which a transformer is trained;
NAMES are those of optimizers.
"""

from __future__ import annotations

import optax_dtypefix  # isort: skip  # First, as in a training script.

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from cases import CASES, name_of
from memory import bytes_a_param
from steps import quartiles
from worker import without_metadata

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from evidence.long_runs import text

if TYPE_CHECKING:
    from collections.abc import Iterator

REPEATS, STEPS = 7, 12
STOCK = os.environ.get("OPTAX_DTYPEFIX") == "off"
TO_NEAREST = "stochastic_rounding" in os.environ.get("OPTAX_DTYPEFIX_DISABLE", "")
tree_map, leaves = jax.tree_util.tree_map, jax.tree_util.tree_leaves


def adamw() -> Any:
    """Return the optimizer that is wrapped."""
    return optax.adamw(0.01)


def optimizers() -> dict[str, tuple[Callable[[], Any], tuple[str, ...]]]:
    """Return what builds each optimizer, and the dtypes of its params."""
    halves, every = ("bfloat16", "float16"), ("bfloat16", "float16", "float32")
    names = ("adamw", "clip, inject(adamw)", "MultiSteps(adamw)")
    stock = {name: (CASES[name].build, every) for name in names}
    stock["lion"] = (lambda: optax.lion(0.001), every)
    if TO_NEAREST:
        return {name: (build, halves) for name, (build, _) in stock.items()}
    names = ("schedule_free_sgd", "adafactor")
    stock.update({name: (CASES[name].build, every) for name in names if name in CASES})
    ours = {"master_weights(adamw)": (lambda: optax_dtypefix.master_weights(adamw()), halves)}
    return stock if STOCK else {**stock, **ours}


def step_of(tx: Any) -> Callable[..., Any]:
    """Return a step of the optimizer alone."""

    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def train_step_of(tx: Any) -> Callable[..., Any]:
    """Return a train step of the transformer."""

    def step(params: Any, state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(text.loss_of)(params, batch)
        params, state = step_of(tx)(params, state, grads)
        return params, state, loss

    return step


def arrays(count: int, dtype: str, seed: int) -> Any:
    """Return four leaves, with about this many numbers together."""
    shape = (max(count // 4 // 256, 1), 256)
    key = jax.random.PRNGKey(seed)
    return [
        jax.random.normal(jax.random.fold_in(key, index), shape).astype(dtype) for index in range(4)
    ]


def measure(step: Callable[..., Any], tx: Any, params: Any, given: Any) -> dict[str, Any]:
    """Compile and time a step, whose params and state are donated."""
    start_params, params = params, tree_map(jnp.copy, params)
    state = tree_map(jnp.copy, tx.init(params))  # Some share buffers with the params.
    start = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, given).compile()
    program = without_metadata(compiled.as_text()).encode()
    about = {
        "compile_s": round(time.perf_counter() - start, 2),
        "program": hashlib.sha256(program).hexdigest()[:16],
        **{name: round(size, 2) for name, size in bytes_a_param(compiled, params).items()},
    }
    try:
        times = milliseconds(compiled, params, state, given)
    except TypeError:  # On stock, the dtypes of the state may change in the first step.
        params = tree_map(jnp.copy, start_params)
        state = tree_map(jnp.copy, tx.init(params))
        times = milliseconds(jax.jit(step, donate_argnums=(0, 1)), params, state, given)
    return {**about, "ms": quartiles(times)}


def milliseconds(step: Callable[..., Any], params: Any, state: Any, given: Any) -> list[float]:
    """Return the time of a step, a few times, without that of the first steps."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        for _ in range(STEPS):
            params, state, *_ = step(params, state, given)
        jax.block_until_ready((params, state))
        times.append((time.perf_counter() - start) / STEPS * 1e3)
    return times[1:]


def steps(count: int, asked: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a result for each optimizer and dtype, and for the transformer with it."""
    batch = jnp.asarray(text.batches()[0])
    for name, (build, dtypes) in optimizers().items():
        for dtype in dtypes if name in asked else ():
            tx, title = build(), name_of(name, dtype)
            given = (arrays(count, dtype, seed) for seed in (0, 1))
            yield result(title, measure, step_of(tx), tx, *given)
            if dtype == "bfloat16" or name == "adamw":
                params = text.start(jnp.dtype(dtype))
                yield result(f"transformer, {title}", measure, train_step_of(tx), tx, params, batch)


def result(name: str, function: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """Return a result; that a step does not run is one too."""
    try:
        return {"step": name, **function(*args)}
    except Exception as error:
        return {"step": name, "raises": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}


def bits(asked: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the share of equal numbers, here and on the CPU, after ten steps of each optimizer."""
    for name, (build, dtypes) in optimizers().items():
        for dtype in dtypes if name in asked else ():
            if dtype != "float32":
                yield result(name_of(name, dtype), share_of_equal, build(), dtype)


def share_of_equal(tx: Any, dtype: str) -> dict[str, Any]:
    """Compare params and state after ten steps here and on the CPU."""
    ends = []
    for device in (jax.devices()[0], jax.devices("cpu")[0]):
        random, step = np.random.default_rng(0), jax.jit(step_of(tx))
        with jax.default_device(device):
            params = jnp.asarray(random.normal(size=(64, 64)), dtype)
            state = tx.init(params)
            for _ in range(10):
                params, state = step(
                    params, state, jnp.asarray(random.normal(size=(64, 64)), dtype)
                )
        ends.append([[np.asarray(leaf) for leaf in leaves(tree)] for tree in (params, state)])
    (params, state), (params_, state_) = ends
    return {"equal_params": equal(params, params_), "equal_state": equal(state, state_)}


def equal(some: list[Any], others: list[Any]) -> float:
    """Return the share of equal numbers in two lists of arrays."""
    same = [np.ravel(a == b) for a, b in zip(some, others)]
    return round(float(np.concatenate(same).mean()), 4) if same else 1.0


def training(count: int) -> Iterator[dict[str, Any]]:
    """Train the transformer in float32, and in bfloat16."""
    for dtype in ("float32", "bfloat16"):
        yield result(f"adamw, {dtype}", train, adamw(), dtype, count)


def train(tx: Any, dtype: str, count: int) -> dict[str, Any]:
    """Return the mean loss of the last tenth of the steps."""
    step = train_step_of(tx)

    def body(carry: Any, batch: Any) -> Any:
        params, state, loss = step(*carry, batch)
        return (params, state), loss

    params = text.start(jnp.dtype(dtype))
    start = time.perf_counter()
    scan = jax.jit(lambda carry, batches: jax.lax.scan(body, carry, batches)[1])
    losses = np.asarray(scan((params, tx.init(params)), jnp.asarray(text.batches()[:count])))
    seconds = time.perf_counter() - start
    last = max(count // 10, 1)
    return {"loss": round(float(losses[-last:].mean()), 4), "seconds": round(seconds, 1)}


def main(count: str, trained: str, seconds: str, *asked: str) -> None:
    """Print what there is time for: the programs that matter most come first."""
    end = time.monotonic() + float(seconds)
    parts = {"steps": steps(int(count), [*asked])}
    if not STOCK:
        parts["bits"] = bits([*asked])
    if not (STOCK or TO_NEAREST) and int(trained):
        parts["training"] = training(int(trained))
    for part, results in parts.items():
        for found in results:
            print(json.dumps({"part": part, **found}), flush=True)
            if time.monotonic() > end:
                sys.exit("no time was left for the rest")


if __name__ == "__main__":
    main(*sys.argv[1:])
