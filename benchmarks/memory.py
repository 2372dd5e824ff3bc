"""Print what compiled train steps need of the memory, in bytes a param, as JSON.

Run as ``memory.py DTYPE [NAME ...]``, with ``OPTAX_DTYPEFIX=off`` for stock. The state and the
params are donated. Nothing is computed.
"""

from __future__ import annotations

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import functools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import optax

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.compiled import compiled_step

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAVES, SHAPE = 16, (500, 500)
"""A step computes leaf by leaf, so temporaries depend on the number of leaves."""
ONE_ARRAY = "adamw, one array"
SHOWN = ("temporaries", "peak", "traffic")
ALIASES = (
    "adafactor adagrad adamw amsgrad dadapt_adamw dog fromage lamb lion nadam novograd prodigy"
    " radam rmsprop schedule_free_adamw schedule_free_sgd sgd sm3"
)


def _functions() -> dict[str, Callable[..., Any]]:
    contrib = getattr(optax, "contrib", optax)
    found = {name: getattr(optax, name, getattr(contrib, name, None)) for name in ALIASES.split()}
    return {name: function for name, function in found.items() if function is not None}


def cases() -> dict[str, Callable[[], Any]]:
    """Build each optimizer with a learning rate, if it has none by default."""
    alone = ("adafactor", "dadapt_adamw", "dog", "prodigy")
    cases = {
        name: functools.partial(function, *(() if name in alone else (0.01,)))
        for name, function in _functions().items()
    }
    clip = optax.clip_by_global_norm(1.0)
    wrapped = {
        ONE_ARRAY: lambda: optax.adamw(0.01),
        "adamw, array as rate": lambda: optax.adamw(jnp.asarray(0.01, jnp.float32)),
        "adamw, schedule": lambda: optax.adamw(optax.cosine_decay_schedule(0.01, 100)),
        "apply_if_finite(adamw)": lambda: optax.apply_if_finite(optax.adamw(0.01), 3),
        "clip_by_global_norm, adamw": lambda: optax.chain(clip, optax.adamw(0.01)),
        "inject_hyperparams(adamw)": lambda: optax.inject_hyperparams(optax.adamw)(0.01),
        "MultiSteps(adamw)": lambda: optax.MultiSteps(optax.adamw(0.01), 4),
        "zero_nans, adamw": lambda: optax.chain(optax.zero_nans(), optax.adamw(0.01)),
    }
    return {**cases, **wrapped}


def memory(tx: Any, dtype: str, leaves: int = LEAVES) -> dict[str, float]:
    """Count the bytes a param of a train step.

    Returns:
      ``temporaries``; ``peak``: all that it needs at once, params, state and gradients, too;
      ``traffic``: what it reads and writes; ``state``: what the optimizer keeps.
    """
    params = [jax.ShapeDtypeStruct(SHAPE, jnp.dtype(dtype))] * leaves
    state = jax.tree_util.tree_leaves(jax.eval_shape(tx.init, params))
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in state)
    found = {
        **bytes_a_param(compiled_step(tx, params), params),
        "state": kept / (leaves * math.prod(SHAPE)),
    }
    return {name: round(size, 2) for name, size in found.items()}


def bytes_a_param(compiled: Any, params: Any) -> dict[str, float]:
    """Count the bytes a param of a compiled step. What is donated counts once."""
    cost, sizes = compiled.cost_analysis(), compiled.memory_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    arguments, temporaries, results, reused = (
        getattr(sizes, f"{kind}_size_in_bytes", 0)  # Old versions of JAX do not know.
        for kind in ("argument", "temp", "output", "alias")
    )
    total = {
        "temporaries": temporaries,
        "peak": arguments + temporaries + results - reused,
        "traffic": cost.get("bytes accessed", 0),
    }
    count = sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))
    return {name: size / count for name, size in total.items()}


SETTINGS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "bfloat16": ({}, ()),
    "bfloat16 beside a second device": (
        {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        ("adamw", "sgd"),
    ),
    "float16": ({}, ()),
    "float32": ({}, ()),
    "float32 x64": ({"JAX_ENABLE_X64": "1"}, ()),
}
"""For each dtype and mode: the environment, and the optimizers if not all."""


def measure() -> dict[str, Any]:
    """Return the counts of stock and patched processes, by dtype and mode."""
    found: dict[str, Any] = {}
    for setting, (environment, names) in SETTINGS.items():
        dtype, _, _ = setting.partition(" ")
        found[setting] = {}
        for way, switch in {"stock": "off", "patched": "on"}.items():
            variables = {"OPTAX_DTYPEFIX": switch, **environment}
            done = subprocess.run(
                [sys.executable, __file__, dtype, *names],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, **variables},
            )
            found[setting][way] = json.loads(done.stdout)
    return found


def summarize(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Count the steps, and return those in which a figure differs: of stock, and patched."""
    rows = {
        f"{setting}, {name}": {key: [of[key], ways["patched"][name][key]] for key in SHOWN}
        for setting, ways in measured.items()
        for name, of in ways["stock"].items()
    }
    different = {
        name: found for name, found in rows.items() if any(a != b for a, b in found.values())
    }
    return {"steps": len(rows), "different": different}


def main(dtype: str, *names: str) -> None:
    """Count for optimizers of the installed optax; leave out those that raise."""
    jax.devices()  # Before JAX has found its devices, a step is traced as for several.
    found = {}
    for name, build in cases().items():
        if names and name not in names:
            continue
        try:
            found[name] = memory(build(), dtype, 1 if name == ONE_ARRAY else LEAVES)
        except (TypeError, ValueError):  # Stock raises.
            continue
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
