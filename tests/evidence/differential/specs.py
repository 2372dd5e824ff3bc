"""Draw specs: a transformation in a wrapper, on a tree."""

from __future__ import annotations

import inspect
import re
from typing import Any, Callable

from evidence.differential import building, third_party

Choose = Callable[[Any], Any]
"""Return one item of a sequence; simple items come first."""

_RATES = (0.1, 0.001, 1e-6, {"array": 0.1}, {"numpy": 0.1}, {"schedule": 0.1})
_DTYPES = (None, {"dtype": "float32"}, {"dtype": "bfloat16"})
_HYPERPARAMETERS: dict[str, Any] = {
    "learning_rate": _RATES,
    "weight_decay": (0.0, 0.1, 1e-6),
    "momentum": (0.9, None),
    "nesterov": (False, True),
    "mu_dtype": _DTYPES,
    "accumulator_dtype": _DTYPES,
    "state_dtype": _DTYPES,
    "dtype_momentum": ({"dtype": "float32"}, {"dtype": "bfloat16"}),
    "b2": (0.999, 0.9),
    "eps_root": (0.0, 1e-8),
    "debias": (True, False),
    "centered": (False, True),
    "bias_correction": (True, False),
    "multiply_by_parameter_scale": (True, False),
    "min_dim_size_to_factor": (128, 2),
    "factored": (True, False),
    "safeguard_warmup": (False, True),
    "beta3": (None, 0.9),
    "weight_lr_power": (2.0, 0.0),
    "min_norm": (0.0, 1e-6, 0.1),
    "max_norm": (0.1, 100.0),
    "threshold": (0.1, 5.0),
    "clipping_threshold": (1.0, None),
    "flip_sign": (True, False),
    "scale_init_precond": (True, False),
    "memory_size": (1, 10),
    "rank": (1, 2),
}
_OPTIONS: dict[str, Any] = {
    "MultiSteps": {"use_grad_mean": (True, False), "accumulator_dtype": _DTYPES},
    "inject_hyperparams": {"hyperparam_dtype": (None, {"dtype": "float32"})},
}

FLOATS = ("float32", "bfloat16", "float16")
DTYPES = (*FLOATS, "float32", "bfloat16", "complex64", "int32", "int8")
SHAPES = ((2, 3), (3,), ())

_NO_UPDATES = ("measure_with_ema", "scale_by_lbfgs_unused")


def names() -> tuple[str, ...]:
    """Return all transformations of the release, and those of third parties."""
    known = building.functions()
    return tuple(sorted(name for name in known if name not in _NO_UPDATES))


_WITH_MOMENTS = {
    "third_party": r"third_party\.",
    "prodigy": r".*prodigy",
    "schedule_free": r".*schedule_free|.*snapshot",
    "distance_estimates": r".*(dadapt|dog|dowg|momo|mechanize|cocob|distance_over|polyak)",
    "line_searches": r".*(lbfgs|linesearch|reduce_on_plateau|sophia|hutchinson)",
    "norms": r".*(clip|norm|trust|lamb|lars|fromage|dpsgd|aggregate|centralize)",
    "factored": r".*(factor|sm3|novograd|galore|muon|rprop)",
    "moments": r".*(ad|acprop|belief|yogi|rms|lion|rss|stddev|ema|adopt)",
    "rest": r".*",
}


def families() -> dict[str, tuple[str, ...]]:
    """Return the names of a release, each in the first family that fits."""
    members: dict[str, list[str]] = {}
    for name in names():
        family = next(f for f, of in _WITH_MOMENTS.items() if re.match(of, name))
        members.setdefault(family, []).append(name)
    return {family: tuple(those) for family, those in sorted(members.items())}


def wrappers() -> tuple[str, ...]:
    found = building.public_transformations()
    return tuple(name for name in building.WRAPPERS if name in found)


def drawn(choose: Choose, of: tuple[str, ...]) -> dict[str, Any]:
    """Draw a spec, which JSON can encode, for one of the named transformations."""
    name = choose(of)
    short = name.rpartition(".")[2]
    wrapper = "" if choose((True, True, False)) else choose(wrappers())
    x64 = choose((False, False, True))
    nodes = choose(("dict", "dict", "dict", "dict", "converts", "validates"))
    return {
        "name": name,
        "arguments": _arguments(choose, building.functions()[name], _HYPERPARAMETERS),
        "wrapper": wrapper,
        "options": _options(choose, wrapper),
        "leaves": _leaves(choose, short, x64=x64, vectors=nodes == "validates"),
        "node": nodes,
        "x64": x64,
        "mode": choose(("traced" if wrapper else "eager", *["traced"] * 8, "jit")),
        "params_given": choose((True, True, True, True, False)),
        "per_example": short in ("dpsgd", "differentially_private_aggregate"),
        "steps": choose((2, 3, 4)),
        "scale": choose((1, 1e-4, 100)),
        "zeros": choose((False, True)),
        "zero_step": choose((None, None, None, None, 0, 1)),
        "seed": choose(range(1000)),
    }


def _arguments(choose: Choose, function: Any, table: dict[str, Any]) -> dict[str, Any]:
    """Draw some arguments of a function; most keep their defaults."""
    arguments = {}
    for key, parameter in inspect.signature(function).parameters.items():
        required = parameter.default is parameter.empty
        if key in table and (required or key == "learning_rate" or choose((False, False, True))):
            arguments[key] = choose(table[key])
    return arguments


def _options(choose: Choose, wrapper: str) -> dict[str, Any]:
    if wrapper not in _OPTIONS:
        return {}
    return _arguments(choose, building.public_transformations()[wrapper], _OPTIONS[wrapper])


def _leaves(choose: Choose, name: str, *, x64: bool, vectors: bool) -> list[dict[str, Any]]:
    dtypes = (*DTYPES, "float64", "float64") if x64 else DTYPES
    one = choose(dtypes)
    how = choose(("one dtype", "of two kinds", "any"))
    if how == "of two kinds":  # For example gradients in half precision.
        other = choose(dtypes)
    leaves = []
    for _ in range(choose((1, 2, 2, 3))):
        param = choose(dtypes) if how == "any" else one
        grad = {"one dtype": one, "of two kinds": other if how == "of two kinds" else one}.get(
            how
        ) or choose((param, *dtypes))
        if name in third_party.LOOK_AT_GRADS_TOO:
            grad = param
        shape = choose(SHAPES[:2] if vectors else SHAPES)
        leaves.append({"shape": list(shape), "param": param, "grad": grad})
    return leaves
