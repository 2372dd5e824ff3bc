"""Run 100 float32 steps of every optimizer, and print a line of JSON each.

``python -m evidence.trajectories.runs NAME...`` runs the named ones, or all, with the patches that
the environment asks for. ``NAME`` is one of optax or of ``optax.contrib``.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np

from evidence.audit.cases import Case, cases
from optax_dtypefix._diagnosis.import_optax import import_optax

STEPS = (10, 100)  # After these steps the params are printed.
RANDOM = np.random.default_rng(0)
START, GOAL, CURVATURE = (
    {
        name: jnp.asarray(scale(RANDOM.uniform(*bounds, size=shape)), jnp.float32)
        for name, shape in (("w", (3, 4)), ("b", (4,)))
    }
    for bounds, scale in (
        ((-1.0, 1.0), np.asarray),
        # More than 100 steps of 0.1 away, so that rounding never decides the sign of a gradient.
        ((300.0, 400.0), np.asarray),
        ((-2.0, -0.5), np.exp),
    )
)
tree_map = jax.tree_util.tree_map


def loss(params: Any) -> Any:
    return sum(
        (CURVATURE[name] * (params[name] - GOAL[name]) ** 2).sum() / 2 for name in sorted(params)
    )


def flat(tree: Any) -> Any:
    return jnp.concatenate([jnp.ravel(tree[name]) for name in sorted(tree)])


def walk(subject: Case) -> list[list[float]] | None:
    """Return params after some steps; None if the first step is not downhill: no optimizer."""
    tx = subject.build()

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params)
        known = {"value": value, "loss": value, "grad": grads, "value_fn": loss, "obj_fn": loss}
        given = tree_map(lambda g: jnp.stack([g, g]), grads) if subject.per_example else grads
        extra_args = {name: known[name] for name in subject.extra_args}
        updates, state = tx.update(given, state, params, **extra_args)
        return updates, state, jnp.vdot(flat(updates), flat(grads))

    params, state, found = START, tx.init(START), []
    for count in range(1, max(STEPS) + 1):
        updates, state, slope = step(params, state)
        if count == 1 and slope >= 0:
            return None
        params = tree_map(jnp.add, params, updates)
        if count in STEPS:
            found.append([float(f"{param:.8g}") for param in np.asarray(flat(params))])
    return found


def main(names: list[str]) -> None:
    named = {name.rpartition(".")[2] for name in names}
    warnings.simplefilter("ignore")  # For example from deprecated functions.
    import_optax()
    for subject in cases():
        # The updates of measure_with_ema have another structure than the params.
        if (
            subject.inside
            or subject.rate not in ("", "float")
            or subject.name == "measure_with_ema"
            or (named and subject.name.rpartition(".")[2] not in named)
        ):
            continue
        walked = walk(subject)
        if walked is not None:
            print(json.dumps([subject.name, walked]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
