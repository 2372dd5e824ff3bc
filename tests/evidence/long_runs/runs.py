"""Train every case in every dtype, compare it with its reference, and print JSON.

``python -m evidence.long_runs.runs`` runs with the patches that the environment asks for. At each
step the reference gets the params, gradients and loss of the run, so its statistics are what those
of the run should have been.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import optax_dtypefix  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax

from evidence.long_runs import digits
from evidence.long_runs.cases import CASES, WEIGHTS, Case
from evidence.long_runs.reference_run import curve
from evidence.long_runs.references import exactly

if TYPE_CHECKING:
    from collections.abc import Iterator


def params_of(case: Case, dtype: Any) -> Any:
    """Return the initial params as a tree."""
    flat = digits.start()
    if case.one_by_one:
        return [jnp.asarray(number, dtype) for number in flat]
    weights = flat[:WEIGHTS].reshape(digits.FEATURES, digits.CLASSES)
    return {"w": jnp.asarray(weights, dtype), "x": jnp.asarray(flat[WEIGHTS:], dtype)}


def flatten(tree: Any) -> Any:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree_util.tree_leaves(tree)])


def loss_of(tree: Any, x: Any, y: Any, scale: float) -> Any:
    """Compute the loss: up to the logits in the dtype of the params, then in float32."""
    flat = flatten(tree)
    weights = flat[:WEIGHTS].reshape(digits.FEATURES, digits.CLASSES)
    logits = x.astype(flat.dtype) @ weights + flat[WEIGHTS:]
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -scale * (y * log_probabilities).sum(1).mean()


def fields(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named parts of a state, and of the states inside."""
    if hasattr(state, "_fields"):
        yield from zip(state._fields, state)
    if isinstance(state, dict):
        yield from state.items()
    children = state.values() if isinstance(state, dict) else state
    for child in children if isinstance(state, (tuple, dict)) else ():
        yield from fields(child)


def scalar(name: str, state: Any, updates: Any) -> Any:
    if name == "norm of update":
        return jnp.linalg.norm(flatten(updates).astype(jnp.float32))
    parts = jax.tree_util.tree_leaves(dict(fields(state))[name.replace("sum of ", "")])
    if name.startswith("sum of "):
        return flatten(parts).astype(jnp.float32).sum()
    # adafactor keeps a placeholder of one element for each statistic that it does not use.
    return max(parts, key=jnp.size)


def train(case: Case, dtype: Any) -> Any:
    """Return losses, params, gradients and statistics of each step."""
    opt_in = case.opt_in and os.environ.get("OPTAX_DTYPEFIX") != "off"
    if opt_in:
        optax_dtypefix.apply(case.patch)
    tx, params = case.build(), params_of(case, dtype)
    images, labels = (jnp.asarray(part, jnp.float32) for part in digits.images())

    def step(carry: Any, batch: Any) -> Any:
        params, state = carry
        loss, grads = jax.value_and_grad(loss_of)(params, images[batch], labels[batch], case.scale)
        value = {"value": loss} if case.with_value else {}
        updates, state = tx.update(grads, state, params, **value)
        statistics = {name: scalar(name, state, updates) for name in case.scalars}
        seen = (loss, flatten(params), flatten(grads), statistics)
        return (optax.apply_updates(params, updates), state), seen

    state = tx.init(params)
    scan = jax.jit(lambda carry, batches: jax.lax.scan(step, carry, batches)[1])
    seen = scan((params, state), jnp.asarray(digits.batches()))
    if opt_in:
        optax_dtypefix.revert(case.patch)
    return jax.tree_util.tree_map(np.asarray, seen)


def worst_errors(case: Case, seen: Any) -> dict[str, float]:
    """Return the largest relative error of each statistic at any step."""
    losses, params, gradients, statistics = seen

    step = case.reference(params[0].astype(np.float64), exactly)
    wanted: dict[str, list[Any]] = {name: [] for name in case.scalars}
    for loss, x, g in zip(losses, params, gradients):
        _, scalars = step(x.astype(np.float64), g.astype(np.float64), float(loss))
        for name in case.scalars:
            wanted[name].append(scalars[name])
    errors = {}
    for name in case.scalars:
        expected = np.asarray(wanted[name])
        got = statistics[name].astype(np.float64).reshape(expected.shape)
        size = np.abs(expected)
        if expected.min() < 0 < expected.max():  # Near zero a relative error means nothing.
            size = np.maximum.accumulate(size, 0)
        error = np.where(got == expected, 0.0, np.abs(got - expected) / (size + 1e-30))
        errors[name] = float(np.nan_to_num(error, nan=np.inf).max())
    return errors


def main() -> None:
    found: dict[str, Any] = {}
    for case in CASES:
        for dtype in case.dtypes:
            try:
                seen = train(case, dtype)
            except TypeError as error:
                found[f"{case.name} {dtype}"] = {"error": str(error)[:200]}
                continue
            with np.errstate(all="ignore"):  # Stock has values that are not finite.
                errors = worst_errors(case, seen)
            losses = seen[0].astype(np.float64) / case.scale
            found[f"{case.name} {dtype}"] = {"losses": curve(losses), "errors": errors}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
