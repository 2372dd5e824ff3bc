"""Print, as JSON, the bytes of arrays that eager steps leave to the garbage collector.

``python -m support.live_bytes`` runs every public transformation of the release. ``python -m
support.live_bytes NAME ...`` runs those whose name starts with one of these.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from typing import TYPE_CHECKING, Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp

from evidence.audit.cases import Case, cases
from support.problems import extra_args, problem
from support.transformations import drifting

if TYPE_CHECKING:
    from collections.abc import Iterator

REGIMES = {
    "float32": (jnp.float32, jnp.float32),
    "bfloat16": (jnp.bfloat16, jnp.bfloat16),
    "mixed": (jnp.bfloat16, jnp.float32),
}
STEPS = 2


def all_cases() -> Iterator[Case]:
    """Yield each transformation once, and wrappers around one that changes dtypes."""
    import optax

    for case in cases():
        if not case.inside and case.rate in ("", "float"):
            yield case
    yield Case("MultiSteps of drifting", lambda: optax.MultiSteps(drifting(), 2))
    yield Case("apply_if_finite of drifting", lambda: optax.apply_if_finite(drifting(), 2))


def live_bytes() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def run(case: Case, dtypes: Any, steps: int) -> None:
    """Take eager steps, and keep nothing."""
    tx = case.build()
    params, grads = problem(dtypes, per_example=case.per_example)
    state = tx.init(params)
    for _ in range(steps):
        _, state = tx.update(grads, state, params, **extra_args(case, params, grads))


def left_behind(case: Case, dtypes: Any) -> int | None:
    """Return the bytes that are alive after the steps and were not before; None if stock raises."""
    try:
        run(case, dtypes, 2)  # What is cached once does not count.
        gc.collect()
        gc.freeze()  # So that the next collection has little to look at.
        before = live_bytes()
        gc.disable()
        run(case, dtypes, STEPS)
        return live_bytes() - before
    except Exception:
        return None
    finally:
        gc.enable()


def compare(stock: dict[str, int | None], patched: dict[str, int | None]) -> None:
    """Check what stock and patched steps leave behind."""
    # In jax 0.4, a cache keeps what branches of cond close over: float32 copies, where patched.
    more = {
        name: (patched[name], left)
        for name, left in stock.items()
        if left is not None and (patched[name] is None or patched[name] > 2 * left)
    }
    assert more == {}
    # Where stock raises there is nothing to compare with, but for what JAX itself leaves.
    new = {name: left for name, left in patched.items() if stock[name] is None and left}
    if not stock["MultiSteps, float32"]:
        assert not any("MultiSteps" in name for name in new), new


def main() -> None:
    warnings.simplefilter("ignore")
    gc.collect()
    gc.freeze()
    found = {
        f"{case.name}, {name}": left_behind(case, dtypes)
        for case in all_cases()
        if case.name.startswith(tuple(sys.argv[1:]) or "")
        for name, dtypes in REGIMES.items()
    }
    gc.unfreeze()
    gc.collect()
    found["kept when all is gone"] = live_bytes()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
