"""Print what ``check_values`` finds, as JSON: ``python -m support.value_verdicts``."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import optax_dtypefix  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import optax

F32, BF16, F16 = jnp.float32, jnp.bfloat16, jnp.float16


def _inside_multi_steps() -> Any:
    return optax.MultiSteps(optax.chain(optax.zero_nans(), optax.sgd(0.1)), 2)


def _injected() -> Any:
    return optax.inject_hyperparams(optax.adam)(1e-3)


def _warm_up(count: Any) -> Any:
    return 1e-3 * jnp.minimum(count, 10)


def _contrib(name: str, *arguments: Any) -> Any:
    return lambda: getattr(optax.contrib, name)(*arguments)


AFFECTED: dict[str, tuple[Any, Any]] = {
    # A fault of each patch: the dtype of the params, and how to build the transformation.
    "zero_nans.nan_forever": (F32, _inside_multi_steps),
    "schedule_free.stalled_sum": (BF16, _contrib("schedule_free_sgd", 0.1)),
    "prodigy.zero_gradient": (F32, _contrib("prodigy")),
    "float16_eps.zero_gradient": (F16, lambda: optax.adam(1e-3)),
    "inject_hyperparams.not_a_number": (BF16, _injected),
    "global_norm.clip_by_global_norm": (F16, lambda: optax.clip_by_global_norm(1.0)),
    "distance_estimates.stalled_sum": (BF16, _contrib("dog")),
    "reduce_on_plateau.no_plateau": (BF16, _contrib("reduce_on_plateau")),
}
RIGHT: dict[str, Any] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adamw": lambda: optax.adamw(1e-3),
    "adafactor": lambda: optax.adafactor(1e-3),
    "clip_by_global_norm": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    "inject_hyperparams": _injected,
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(1e-3), 3),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(1e-3), 4),
    "MultiSteps with a rate of 0": lambda: optax.MultiSteps(optax.adamw(_warm_up), 4),
}
"""Stock is right on these in float32."""


def main() -> None:
    warnings.simplefilter("ignore")  # Stock optax warns of deprecations, and before it fails.
    cases = {**AFFECTED}
    if os.environ.get("OPTAX_DTYPEFIX") == "off":  # The patched ones have the same programs.
        cases |= {name: (F32, build) for name, build in RIGHT.items()}
    verdicts: dict[str, list[str] | None] = {}
    for name, (dtype, build) in cases.items():
        params = {"w": jax.ShapeDtypeStruct((3, 4), dtype), "b": jax.ShapeDtypeStruct((4,), dtype)}
        loss = jax.ShapeDtypeStruct((), F32)
        extra_args = {"value": loss} if "plateau" in name else {}
        try:
            tx = build()
        except AttributeError:  # Not in this release.
            verdicts[name] = None
        else:
            found = optax_dtypefix.check_values(tx, params, **extra_args)
            verdicts[name] = [str(problem) for problem in found]
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
