"""Run some steps of cells of the audit, on random numbers, and save their updates.

``python -m evidence.audit.values FILE COUNT SEED`` draws COUNT cells, and hyperparameters for them.
With ``JAX_ENABLE_X64=1`` all arrays are float64: on stock, that is the reference.
"""

from __future__ import annotations

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import inspect
import random
import sys
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from evidence.audit.cases import Case, cases, public_transformations
from evidence.audit.measure import extra_args_of
from evidence.audit.regimes import REGIMES, Regime
from optax_dtypefix._diagnosis.check_command.worker import loss
from optax_dtypefix._diagnosis.import_optax import import_optax

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS, STEPS = 6, 3
"""One draw of numbers says little: stock may be right by luck."""

SIZES = (0, 0, -7, -12)
"""Gradients are multiplied by this power of 2. Their squares may underflow in float16."""

_FLOAT32, _BFLOAT16 = jnp.float32, jnp.bfloat16
HYPERPARAMETERS: dict[str, tuple[Any, ...]] = {
    "weight_decay": (0.1, 1e-6),
    "momentum": (0.9,),
    "nesterov": (True,),
    **dict.fromkeys(("mu_dtype", "accumulator_dtype", "state_dtype"), (_FLOAT32, _BFLOAT16)),
    "b2": (0.9,),
    "eps_root": (1e-8,),
    **dict.fromkeys(("centered", "safeguard_warmup"), (True,)),
    **dict.fromkeys(("debias", "bias_correction", "multiply_by_parameter_scale"), (False,)),
    "min_dim_size_to_factor": (2,),
    "beta3": (0.9,),
    "weight_lr_power": (0.0,),
    "min_norm": (0.1,),
    "clipping_threshold": (None,),
    "use_grad_mean": (False,),
}
"""Values beside the defaults."""

WITHOUT_VALUES = {"integer leaf", "integer matrix", "int8 grads", "strict", "nodes"}
"""Regimes: stock truncates moments of integers, and the last two change no numbers."""
WITHOUT_REFERENCE = {
    # They draw random numbers, which depend on the dtype.
    *("add_noise", "noisy_sgd", "dpsgd", "differentially_private_aggregate", "sophia"),
    # No updates.
    *("measure_with_ema", "hutchinson_estimator_diag_hessian"),
}
PAIRS = {"dadapt_adamw", "momo_adam", "prodigy", "mechanize", "lbfgs"}
"""Patched, a complex leaf is a pair of real ones: another algorithm than that of the reference."""


def has_reference(case: Case, regime: Regime) -> bool:
    """Whether stock in float64 is a reference."""
    name = case.name.rpartition(".")[2]
    if name in WITHOUT_REFERENCE:
        return False
    if "complex" in regime.name:
        # From 0.2.8 on, stock's accumulator of a real param loses the imaginary part of a gradient.
        return name not in PAIRS and "MultiSteps" not in (name, case.inside)
    # A difference of two gradients in half precision is mostly rounding.
    half = regime.name not in ("f32", "f32 x64", "f64 x64", "f64 grads")
    return not (half and name == "lbfgs")


def drawn(count: int, seed: str) -> Iterator[tuple[str, Case, Regime, dict[str, Any], float]]:
    """Draw cells, each with a name."""
    every = [
        (case, regime)
        for case in cases()
        for regime in REGIMES
        if regime.name not in WITHOUT_VALUES and has_reference(case, regime)
    ]
    draw = random.Random(seed)
    for case, regime in draw.sample(every, min(count, len(every))):
        more = {} if case.inside else hyperparameters(case, draw)
        shown = ", ".join(f"{name}={getattr(of, '__name__', of)}" for name, of in more.items())
        size = draw.choice(SIZES)
        name = f"{case.inside}({case.name}, {case.rate}, {shown}), {regime.name}, size {size}"
        yield name, case, regime, more, 2.0**size


def hyperparameters(case: Case, draw: random.Random) -> dict[str, Any]:
    known = inspect.signature(public_transformations()[case.name]).parameters
    named = [name for name in HYPERPARAMETERS if name in known]
    chosen = draw.sample(named, draw.randint(0, min(2, len(named))))
    return {name: draw.choice(HYPERPARAMETERS[name]) for name in chosen}


def numbers(seed: int, dtypes: Any, size: float, *, exact: bool) -> Any:
    """Return trees of random numbers, the same ones in each way."""
    rng, of = np.random.default_rng(seed), dict(zip("wb", dtypes))

    def leaf(name: str, shape: Any) -> Any:
        values = size * rng.normal(size=shape)
        if jnp.issubdtype(of[name], np.complexfloating):
            values = values + 1j * size * rng.normal(size=shape)
        rounded = jnp.asarray(values, of[name])
        wide = jnp.complex128 if jnp.iscomplexobj(rounded) else jnp.float64
        return rounded.astype(wide) if exact else rounded

    return {"w": leaf("w", (3, 4)), "b": leaf("b", (4,))}


def updates_of(
    case: Case, regime: Regime, more: dict[str, Any], size: float, *, exact: bool
) -> Any:
    """Return the updates of each leaf, for each seed and step."""
    if exact:
        more = {name: of for name, of in more.items() if not name.endswith("dtype")}
    tx, found = case.build(**more), []
    functions = {name: loss for name in case.extra_args if name.endswith("_fn")}
    step = jax.jit(lambda *trees, **extra: tx.update(*trees, **extra, **functions))
    for seed in range(SEEDS):
        draws = [
            [numbers(100 * seed + 10 * i + t, *of, exact=exact) for t in range(STEPS)]
            for i, of in enumerate(((regime.params, 1.0), (regime.grads or regime.params, size)))
        ]
        state, found_here = None, []
        for params, grads in zip(*draws):
            state = tx.init(params) if state is None else state
            extra = extra_args_of(case, params, grads).items()
            arrays = {name: of for name, of in extra if name not in functions}
            updates, state = step(grads, state, params, **arrays)
            found_here.append(updates)
        found.append(found_here)
    return {
        name: np.asarray([[np.asarray(of[name], np.complex128) for of in steps] for steps in found])
        for name in "wb"
    }


def main(file: str, count: str, seed: str) -> None:
    """Save the updates of each cell. Those of what raises are left out."""
    warnings.simplefilter("ignore")
    import_optax()
    exact = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    found = {}
    for cell, case, *given in drawn(int(count), seed):
        try:
            with given[0].modes():
                updates = updates_of(case, *given, exact=exact)
        except Exception as error:  # An error of optax is the outcome.
            print(f"{cell}: {error}", file=sys.stderr)
            continue
        found.update({f"{cell}: {name}": of for name, of in updates.items()})
    np.savez(file, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
