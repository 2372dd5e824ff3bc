"""Print the counts of a train step of each benchmark case, as JSON. Nothing is compiled."""

from __future__ import annotations

import json
from typing import Any

from worker import bytes_of, train_step  # isort: skip  # It has the shim imported first.
import jax
import jax.numpy as jnp
from cases import CASES, Case, params_of

from optax_dtypefix._contract.x64 import x64
from optax_dtypefix._diagnosis.jaxpr import equations


def counts(case: Case, dtype: str) -> dict[str, Any]:
    """Return traces, bytes of state and float64 arrays in a step, or the error."""
    try:
        tx, params = case.build(), params_of(1000, dtype)
        state = tx.init(params)
        step = jax.make_jaxpr(train_step(case, tx), return_shape=True)
        jaxpr, (_, later) = step(params, state)
    except (TypeError, ValueError) as error:
        return {"raises": str(error)}
    before, after = (
        [(aval.shape, aval.dtype, aval.weak_type) for aval in avals]
        for avals in (jaxpr.in_avals, jaxpr.out_avals)
    )
    return {
        "traces": 1 if after == before else 2,
        "float64": any(
            getattr(variable.aval, "dtype", None) == jnp.float64 and variable.aval.shape
            for equation in equations(jaxpr.jaxpr)
            for variable in equation.outvars
        ),
        "state_bytes": bytes_of(state),
        "state_bytes_later": bytes_of(later),
    }


def main() -> None:
    """Count in all cases that need no opt-in patch."""
    found = {}
    for name, case in CASES.items():
        for setting in case.settings if not case.opt_in else ():
            dtype, _, wide = setting.partition(" ")
            with x64(bool(wide)):
                found[f"{name} {setting}"] = counts(case, dtype)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
