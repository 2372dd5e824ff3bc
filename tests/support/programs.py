"""Prints compiled programs and results of named cases as JSON, for two processes to compare.

Every case keeps the contract on stock optax. With ``OPTAX_DTYPEFIX=off`` the functions are stock's;
else each patch acts alone in turn.
"""

from __future__ import annotations

import json
import os
from typing import Any

import optax_dtypefix  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax
from packaging.version import Version

from support.compiled import without_metadata

STEPS = 4
RELEASE = Version(optax.__version__)


def tree_of(dtype: Any, seed: int) -> dict[str, Any]:
    """A small tree of values that are exact in every float dtype."""
    random = np.random.default_rng(seed)
    shapes = {"b": (4,), "w": (3, 4)}
    return {
        name: jnp.asarray(random.integers(-64, 64, shape) / 32, dtype)
        for name, shape in shapes.items()
    }


def multi_steps() -> dict[str, tuple[Any, Any]]:
    def mean(inner: Any, **options: Any) -> Any:
        return optax.MultiSteps(inner, 2, **options)

    cases = {
        "adam": (mean(optax.adam(1e-2)), jnp.float32),
        "adam bfloat16": (mean(optax.adam(1e-2)), jnp.bfloat16),
        "momentum": (mean(optax.sgd(0.1, momentum=0.9)), jnp.float32),
        "momentum float16": (mean(optax.sgd(0.1, momentum=0.9)), jnp.float16),
        "sum": (mean(optax.sgd(0.1), use_grad_mean=False), jnp.float32),
        "schedule": (optax.MultiSteps(optax.sgd(0.1), lambda _: 2), jnp.float32),
    }
    if hasattr(optax, "skip_not_finite"):
        skip = mean(optax.adam(1e-2), should_skip_update_fn=optax.skip_not_finite)
        cases["skip"] = (skip, jnp.float32)
    return cases


def schedule_free() -> dict[str, tuple[Any, Any]]:
    if Version("0.2.3") > RELEASE:
        return {}
    from optax import contrib

    warm_up = optax.linear_schedule(0.01, 0.1, 10)
    narrow = contrib.schedule_free_sgd(0.1, state_dtype=jnp.bfloat16)
    return {
        "sgd": (contrib.schedule_free_sgd(0.1), jnp.float32),
        "adamw": (contrib.schedule_free_adamw(1e-2, weight_decay=0.1), jnp.float32),
        "warm-up": (contrib.schedule_free_sgd(0.1, warmup_steps=3), jnp.float32),
        "schedule": (contrib.schedule_free(optax.sgd(warm_up), warm_up), jnp.float32),
        "narrow z": (narrow, jnp.float32),
    }


def fromage() -> dict[str, tuple[Any, Any]]:
    cases = {
        "number": (optax.fromage(0.1), jnp.float32),
        "number bfloat16": (optax.fromage(0.1), jnp.bfloat16),
    }
    if Version("0.2.7") <= RELEASE:
        schedule = optax.linear_schedule(0.01, 0.1, 10)
        cases["schedule"] = (optax.fromage(schedule), jnp.float32)
    return cases


def zoom_linesearch() -> dict[str, tuple[Any, Any]]:
    if Version("0.2.3") > RELEASE:
        return {}
    return {"direction": (optax.scale_by_lbfgs(), jnp.float32)}


def zero_nans() -> dict[str, tuple[Any, Any]]:
    cases = multi_steps()
    if not Version("0.1.8") <= RELEASE < Version("0.2.0"):
        inner = optax.chain(optax.zero_nans(), optax.adam(1e-2))
        cases["inside"] = (optax.MultiSteps(inner, 2), jnp.float32)
    return cases


def prodigy() -> dict[str, tuple[Any, Any]]:
    if Version("0.1.8") > RELEASE:
        return {}
    from optax import contrib

    cases = {
        "defaults": (contrib.prodigy(), jnp.float32),
        "decay": (contrib.prodigy(0.5, weight_decay=0.1), jnp.float32),
        "schedule": (contrib.prodigy(optax.linear_schedule(0.1, 1.0, 5)), jnp.float32),
    }
    if Version("0.2.3") <= RELEASE:
        cases["safeguard"] = (contrib.prodigy(safeguard_warmup=True), jnp.float32)
    return cases


def global_norm() -> dict[str, tuple[Any, Any]]:
    norm = optax.tree.norm if Version("0.2.5") <= RELEASE else optax.global_norm

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        total = norm(grads) + optax.safe_norm(grads["w"], 0.1)
        total += optax.safe_root_mean_squares(grads["b"], 0.1)
        return jax.tree_util.tree_map(lambda g: g / total, grads), state

    cases = {
        "clip": (optax.clip_by_global_norm(1.0), jnp.float32),
        "clip complex": (optax.clip_by_global_norm(1.0), jnp.complex64),
        "clip by array": (optax.clip_by_global_norm(jnp.asarray(1.0)), jnp.float32),
        "block": (optax.clip_by_block_rms(0.5), jnp.float32),
        "block complex": (optax.clip_by_block_rms(0.5), jnp.complex64),
        "adaptive": (optax.adaptive_grad_clip(0.1), jnp.float32),
        "trust ratio": (optax.scale_by_trust_ratio(), jnp.float32),
        "lamb": (optax.lamb(1e-2), jnp.float32),
        "lars": (optax.lars(1e-2), jnp.float32),
        "norms": (optax.GradientTransformation(lambda _: (), update), jnp.float32),
    }
    if Version("0.2.3") <= RELEASE:
        cases["normalize"] = (optax.normalize_by_update_norm(), jnp.float32)
    return cases


def inject_hyperparams() -> dict[str, tuple[Any, Any]]:
    warm_up = optax.linear_schedule(0.01, 0.1, 10)
    injected = {
        "momentum": optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9),
        "adam": optax.inject_hyperparams(optax.adam)(1e-2),
        "schedule": optax.inject_hyperparams(optax.adamw)(warm_up, weight_decay=0.1),
        "array": optax.inject_hyperparams(optax.adam)(jnp.asarray(1e-2, jnp.float32)),
        "integer": optax.inject_hyperparams(optax.apply_every)(2),
        "static": optax.inject_hyperparams(optax.adam, static_args="b1")(1e-2),
    }
    if Version("0.1.4") <= RELEASE:
        wide = optax.inject_hyperparams(optax.adam, hyperparam_dtype=jnp.float32)
        injected["hyperparam_dtype"] = wide(1e-2)
    return {name: (tx, jnp.float32) for name, tx in injected.items()}


def float16_eps() -> dict[str, tuple[Any, Any]]:
    """Whatever is not float16."""
    cases = {
        "adam": (optax.adam(1e-2), jnp.float32),
        "adam bfloat16": (optax.adam(1e-2), jnp.bfloat16),
        "adam complex": (optax.adam(1e-2), jnp.complex64),
        "adabelief bfloat16": (optax.adabelief(1e-2), jnp.bfloat16),
        "yogi": (optax.yogi(1e-2), jnp.float32),
        "adagrad bfloat16": (optax.adagrad(1e-2), jnp.bfloat16),
        "rmsprop centered": (optax.rmsprop(1e-2, centered=True), jnp.float32),
        "sm3": (optax.sm3(1e-2), jnp.float32),
        "adafactor": (optax.adafactor(1e-2, min_dim_size_to_factor=2), jnp.float32),
    }
    if Version("0.2.5") <= RELEASE:
        cases["muon"] = (optax.contrib.muon(1e-2), jnp.float32)
        cases["ademamix bfloat16"] = (optax.contrib.ademamix(1e-2), jnp.bfloat16)
    return cases


def float32_moments() -> dict[str, tuple[Any, Any]]:
    """Whatever has its moments in float32 already; a half-precision momentum is the user's."""
    return {
        "adam": (optax.adam(1e-2), jnp.float32),
        "adam with mu_dtype": (optax.adam(1e-2, mu_dtype=jnp.bfloat16), jnp.float32),
        "rmsprop centered": (optax.rmsprop(1e-2, centered=True), jnp.float32),
        "adafactor": (optax.adafactor(1e-2, min_dim_size_to_factor=2), jnp.float32),
    }


def with_value(tx: Any, value: Any = None, name: str = "value") -> Any:
    """Passes a loss, if it has none of its own."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        loss = jnp.sum(params["w"] ** 2) if value is None else value
        return tx.update(grads, state, params, **{name: loss})

    return optax.GradientTransformation(tx.init, update)


def distance_estimates() -> dict[str, tuple[Any, Any]]:
    if Version("0.1.7") > RELEASE:
        return {}
    from optax import contrib

    built = {}
    if Version("0.1.7") < RELEASE or hasattr(jax, "tree_map"):  # Its mechanize calls that.
        built["mechanize"] = contrib.mechanize(optax.adam(1e-2), weight_decay=0.1)
    warm_up = optax.linear_schedule(0.1, 1.0, 5)
    if Version("0.1.8") <= RELEASE:
        built["dadapt_adamw"] = contrib.dadapt_adamw(weight_decay=0.1)
        built["dadapt_adamw schedule"] = contrib.dadapt_adamw(warm_up)
    if Version("0.2.3") <= RELEASE:
        built["dog"] = contrib.dog(weight_decay=0.1, mask={"w": True, "b": False})
        built["dog schedule"] = contrib.dog(warm_up)
        built["dowg"] = contrib.dowg(jnp.asarray(0.5, jnp.float32))
        decaying: dict[str, Any] = {"weight_decay": 0.1, "adapt_lower_bound": True}
        built["momo"] = with_value(contrib.momo())
        built["momo decay"] = with_value(contrib.momo(np.float64(0.1), **decaying))
        built["momo_adam"] = with_value(contrib.momo_adam(warm_up, **decaying))
        if not Version("0.2.5") <= RELEASE < Version("0.2.7"):
            built["momo_adam value"] = with_value(contrib.momo_adam(), 1.7)
    return {name: (tx, jnp.float32) for name, tx in built.items()}


def reduce_on_plateau() -> dict[str, tuple[Any, Any]]:
    if Version("0.1.8") > RELEASE:
        return {}
    from optax import contrib

    built = {"defaults": contrib.reduce_on_plateau(patience=1, cooldown=1)}
    if Version("0.2.2") <= RELEASE:
        built["mean"] = contrib.reduce_on_plateau(patience=1, accumulation_size=2)
    if Version("0.2.3") <= RELEASE:
        built["least"] = contrib.reduce_on_plateau(0.5, patience=1, min_scale=0.4)
    name = "value" if Version("0.2.2") <= RELEASE else "loss"
    return {case: (with_value(tx, name=name), jnp.float32) for case, tx in built.items()}


CASES = (
    multi_steps,
    zero_nans,
    schedule_free,
    zoom_linesearch,
    prodigy,
    fromage,
    global_norm,
    inject_hyperparams,
    float16_eps,
    float32_moments,
    distance_estimates,
    reduce_on_plateau,
)


def states() -> dict[str, tuple[Any, Any]]:
    """Transformations whose initial state is compared, also where stock breaks the contract."""
    cases = {
        "MultiSteps(adafactor)": (optax.MultiSteps(optax.adafactor(1e-3), 2), jnp.bfloat16),
        "MultiSteps complex": (optax.MultiSteps(optax.adam(1e-3), 2), jnp.complex64),
    }
    cases["adam float16"] = (optax.adam(1e-3), jnp.float16)
    cases["adafactor float16"] = (optax.adafactor(1e-3, min_dim_size_to_factor=2), jnp.float16)
    cases["inject_hyperparams"] = (optax.inject_hyperparams(optax.adam)(1e-3), jnp.bfloat16)
    if Version("0.1.8") <= RELEASE:
        cases["prodigy"] = (optax.contrib.prodigy(), jnp.bfloat16)
    if Version("0.1.8") <= RELEASE:
        cases["reduce_on_plateau"] = (optax.contrib.reduce_on_plateau(), jnp.bfloat16)
    if Version("0.1.7") <= RELEASE:
        cases["mechanize"] = (optax.contrib.mechanize(optax.adam(1e-3)), jnp.bfloat16)
    if Version("0.2.3") <= RELEASE:
        for name in ("dadapt_adamw", "dog", "dowg", "momo", "momo_adam"):
            cases[name] = (getattr(optax.contrib, name)(), jnp.float16)
    if Version("0.2.0") <= RELEASE:
        search = optax.scale_by_backtracking_linesearch(5, store_grad=True)
        cases["backtracking"] = (search, jnp.bfloat16)
    if Version("0.2.3") <= RELEASE:
        cases["lbfgs"] = (optax.lbfgs(), jnp.bfloat16)
        cases["schedule_free"] = (optax.contrib.schedule_free_adamw(1e-3), jnp.bfloat16)
    if Version("0.2.6") <= RELEASE:
        schedule = optax.linear_schedule(0.01, 0.1, 10)
        cases["fromage"] = (optax.fromage(schedule), jnp.bfloat16)
    return cases


def structure(tx: Any, dtype: Any) -> list[str]:
    """Classes, fields and shapes of a state, and no dtypes."""
    state = jax.eval_shape(tx.init, tree_of(dtype, 0))
    shapes = [str(leaf.shape) for leaf in jax.tree_util.tree_leaves(state)]
    return [str(jax.tree_util.tree_structure(state)), *shapes]


def describe(tx: Any, dtype: Any) -> dict[str, Any]:
    """The compiled step without debug information, and the bits of a few steps."""
    params = tree_of(dtype, 0)

    def init(params: Any) -> Any:
        return tx.init(params)

    def step(grads: Any, state: Any, params: Any) -> Any:
        return tx.update(grads, state, params)

    compiled_init = jax.jit(init).lower(params).compile()
    state = compiled_init(params)
    compiled = jax.jit(step).lower(params, state, params).compile()
    outputs = []
    for seed in range(STEPS):
        updates, state = compiled(tree_of(dtype, seed + 1), state, params)
        params = jax.tree_util.tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        outputs += jax.tree_util.tree_leaves((updates, state))
    program = [without_metadata(part.as_text()) for part in (compiled_init, compiled)]
    return {"program": program, "bits": [np.asarray(leaf).tobytes().hex() for leaf in outputs]}


def main() -> None:
    found: dict[str, Any] = {}
    for cases in CASES:
        name = cases.__name__
        if os.environ.get("OPTAX_DTYPEFIX") != "off":
            optax_dtypefix.revert()
            optax_dtypefix.apply(name)
        found[name] = {case: describe(tx, dtype) for case, (tx, dtype) in cases().items()}
    if os.environ.get("OPTAX_DTYPEFIX") != "off":
        optax_dtypefix.apply()
    found["states"] = {case: structure(tx, dtype) for case, (tx, dtype) in states().items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
