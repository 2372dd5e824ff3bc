"""Print the dtypes that a step of every transformation gives, and the bits of some.

``python -m support.history write FILE [NAME...]`` makes the state of each transformation, or of
those named, with ``init``, and writes it to FILE as NumPy arrays; it then takes one step, and
another after an ``init`` with params of other dtypes. ``restore`` in place of ``write`` reads the
states, and never calls ``init``.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np

from evidence.audit.cases import Case, cases
from support.problems import extra_args, problem
from support.processes import json_of
from support.trees import leaves, tree_map

if TYPE_CHECKING:
    from collections.abc import Iterator

REGIMES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "bfloat16": ((jnp.bfloat16,), (jnp.bfloat16,)),
    "float32 and bfloat16": ((jnp.float32, jnp.bfloat16), (jnp.bfloat16,)),
}
"""By name: the dtypes of params, and those of gradients."""
OTHER = (jnp.bfloat16, jnp.float32)
"""Dtypes of params for an unrelated ``init``."""

INSIDE = ("clip_by_global_norm", "ema", "rmsprop", "scale_by_adam", "sgd", "trace")
"""What MultiSteps is put around: with moments that tell the dtypes of params, and without."""


def all_cases(only: tuple[str, ...]) -> Iterator[tuple[str, Case]]:
    """Yield each transformation once, or those named, and some inside MultiSteps."""
    for case in cases(only):
        inside = case.inside == "MultiSteps" and case.name in INSIDE
        if case.rate in ("", "float") and (inside or not case.inside):
            yield f"{case.name} {case.inside}".strip(), case


def steps(case: Case, tx: Any, state: Any, regime: str) -> list[str]:
    """Take a step without params, and one with params."""
    params, grads = problem(*REGIMES[regime], per_example=case.per_example)
    extra = extra_args(case, params, grads)
    hashed = case.name in INSIDE and not case.inside
    return [step(tx, (grads, state, given), extra, hashed) for given in (None, params)]


def step(tx: Any, given: tuple[Any, ...], extra: dict[str, Any], hashed: bool) -> str:
    """Take a step abstractly; name the dtypes of updates and state. On request, hash their bits."""

    def update(*args: Any) -> Any:
        return tx.update(*args, **extra)

    try:
        result = leaves(update(*given) if hashed else jax.eval_shape(update, *given))
    except Exception as error:  # Some transformations need params.
        return type(error).__name__
    dtypes = ",".join(str(leaf.dtype) for leaf in result)
    bits = b"".join(np.asarray(leaf).tobytes() for leaf in result) if hashed else b""
    return f"{dtypes} {hashlib.sha256(bits).hexdigest()[:12]}"


def with_init(case: Case, regime: str) -> tuple[Any, list[list[str]]]:
    """Take the steps on a new state, and again after another ``init``. Return the state, too."""
    tx = case.build()
    params, _ = problem(*REGIMES[regime])
    state = tree_map(lambda leaf: jnp.asarray(np.asarray(leaf)), tx.init(params))
    found = [steps(case, tx, state, regime)]
    tx.init(problem(OTHER)[0])
    return tree_map(np.asarray, state), [*found, steps(case, tx, state, regime)]


def compare(file: Path, *only: str, **variables: str) -> int:
    """Check the transformations, or those named, and return how many cells were compared."""
    here, elsewhere = (
        json_of("support.history", way, str(file), *only, **variables)
        for way in ("write", "restore")
    )
    assert {*here} == {*elsewhere}
    for name, (first, after_another_init) in here.items():
        assert after_another_init == first, name
        assert elsewhere[name] == first, name
    return len(here)


def main(way: str, path: str, *only: str) -> None:
    warnings.simplefilter("ignore")
    restore, file = way == "restore", Path(path)
    states: dict[str, Any] = pickle.loads(file.read_bytes()) if restore else {}
    found: dict[str, Any] = {}
    for name, case in all_cases(only):
        for regime in REGIMES:
            key = f"{name}, {regime}"
            if restore:
                if key in states:
                    state = tree_map(jnp.asarray, states[key])
                    found[key] = steps(case, case.build(), state, regime)
                continue
            try:
                states[key], found[key] = with_init(case, regime)
            except Exception:  # Stock, too, does not take these dtypes, or this wrapper.
                continue
    if not restore:
        file.write_bytes(pickle.dumps(states))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
