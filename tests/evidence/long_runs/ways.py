"""Train in each way to keep precision, and print JSON.

``python -m evidence.long_runs.ways [--cases NAME...] --ways NAME...`` runs with the patches that
the environment asks for.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import optax_dtypefix  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax

from evidence.long_runs import digits, runs, text
from evidence.long_runs.cases import CASES, HALVES, Case
from evidence.long_runs.reference_run import WINDOW
from support.compiled import compiled_step

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST = 300
"""The number of steps over which the final loss is averaged."""


def unwrapped(tx: Any) -> Any:
    return tx


class Way(NamedTuple):
    """A way to train.

    Attributes:
      dtypes: of the params.
      wrap: what wraps the optimizer.
      scale: what the initial params are multiplied by.
    """

    dtypes: tuple[str, ...]
    wrap: Callable[[Any], Any] = unwrapped
    scale: float = 1.0


WAYS = {
    "half": Way(HALVES),
    "master_weights": Way(HALVES, optax_dtypefix.master_weights),
    "float32": Way(("float32",)),
    "perturbed": Way(("float32",), scale=1 + 1e-6),
    "float64": Way(("float64",)),
}


NAMES = {
    "adam, float32_moments": "adam(mu_dtype=float32)",
    "rmsprop, float32_moments": "rmsprop(decay=0.999)",
    "adafactor, float32_moments": "adafactor",
}
"""Names of cases that are trained without their patch, too."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a way trains.

    Attributes:
      name: the optimizer.
      dtypes: half-precision dtypes of the params that are of interest.
      build: builds the transformation.
      start: returns the params in a dtype.
      loss: maps params and a batch to the loss.
      batches: an array, with one batch a step.
      with_value: whether the update takes the loss.
      scale: the loss scale.
    """

    name: str
    dtypes: tuple[str, ...]
    build: Callable[[], Any]
    start: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]
    batches: Callable[[], Any]
    with_value: bool = False
    scale: float = 1.0


def of_case(case: Case) -> Problem:
    """Return the problem of one long run."""
    images, labels = (np.asarray(part, np.float32) for part in digits.images())

    def loss(params: Any, batch: Any) -> Any:
        x, y = jnp.asarray(images)[batch], jnp.asarray(labels)[batch]
        return runs.loss_of(params, x, y, case.scale)

    # In float16 a case of an opt-in patch is the case of ``float16_eps`` again.
    dtypes = ("bfloat16",) if case.opt_in else case.dtypes
    return Problem(
        NAMES.get(case.name, case.name),
        dtypes,
        case.build,
        lambda dtype: runs.params_of(case, dtype),
        loss,
        digits.batches,
        case.with_value,
        case.scale,
    )


def adamw() -> Any:
    return optax.adamw(optax.warmup_cosine_decay_schedule(0, 3e-3, 100, text.STEPS, 3e-5))


TRANSFORMER = Problem(
    "transformer, adamw", ("bfloat16",), adamw, text.start, text.loss_of, text.batches
)


def problems() -> Iterator[Problem]:
    """Yield all problems."""
    yield from map(of_case, CASES)
    yield TRANSFORMER


def peak_bytes(problem: Problem, way: Way, dtype: str) -> float:
    """Return the bytes that a compiled step of the optimizer needs at once, for each param.

    Params and state are donated, so their new values replace the old ones: they count once, beside
    the gradients and the temporaries. The model itself does not count.
    """
    params = jax.eval_shape(lambda: problem.start(jnp.dtype(dtype)))
    sizes = compiled_step(way.wrap(problem.build()), params).memory_analysis()
    added = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    peak = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + added
    return peak / sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))


def train(problem: Problem, way: Way, dtype: str) -> dict[str, Any]:
    """Train, and return the final loss, and the bytes a param of params and state."""
    tx, params = way.wrap(problem.build()), problem.start(jnp.dtype(dtype))
    params = jax.tree_util.tree_map(lambda leaf: leaf * way.scale, params)

    def step(carry: Any, batch: Any) -> Any:
        params, state = carry
        loss, grads = jax.value_and_grad(problem.loss)(params, batch)
        value = {"value": loss} if problem.with_value else {}
        updates, state = tx.update(grads, state, params, **value)
        return (optax.apply_updates(params, updates), state), loss / problem.scale

    start = (params, tx.init(params))
    scan = jax.jit(lambda carry, batches: jax.lax.scan(step, carry, batches)[1])
    losses = np.asarray(scan(start, jnp.asarray(problem.batches())), np.float64)
    count = sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))
    size = sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(start))
    curve = losses.reshape(-1, WINDOW).mean(1).tolist() if problem is TRANSFORMER else []
    return {"loss": float(losses[-LAST:].mean()), "bytes": size / count, "curve": curve}


def main() -> None:
    """Train all problems that the command line asks for, and measure the memory of one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--ways", nargs="+", choices=WAYS)
    asked = parser.parse_args()
    found = []
    for problem in problems():
        if asked.cases and problem.name not in asked.cases:
            continue
        for name in asked.ways:
            for dtype in WAYS[name].dtypes:
                if dtype in (*problem.dtypes, "float32", "float64"):
                    result = train(problem, WAYS[name], dtype)
                    if problem is TRANSFORMER:
                        result["peak"] = peak_bytes(problem, WAYS[name], dtype)
                    found.append({"case": problem.name, "dtype": dtype, "way": name, **result})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
