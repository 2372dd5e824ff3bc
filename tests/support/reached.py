"""Run a few steps of some programs, and print as JSON which patches each of them reached.

``python -m support.reached`` runs them with all default patches, in one process. A program that the
installed optax lacks is left out.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import optax_dtypefix  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax
from packaging.version import Version

from optax_dtypefix import preserve_dtypes
from optax_dtypefix._contract.x64 import x64
from optax_dtypefix._diagnosis.faults._reproduce import drifting, public
from optax_dtypefix._diagnosis.probes import NotInReleaseError
from support.trees import tree_map

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

with contextlib.suppress(ImportError):  # 0.1.2 has none.
    import optax.contrib


RELEASE = Version(optax.__version__)


class Run(NamedTuple):
    """A program, and the patches that it needs.

    Attributes:
      build: builds the transformation.
      dtype: of the params and gradients.
      needs: ids of these patches, as far as they are applied on the installed release.
      mode: entered while the program runs.
      extra: the extra arguments that ``update`` needs.
    """

    build: Callable[[], Any]
    dtype: Any
    needs: set[str]
    mode: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    extra: tuple[str, ...] = ()


def _adam() -> Any:
    return optax.adam(1e-3)


def _warm_up() -> Any:
    return optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)


def _clipped_adamw() -> Any:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(_warm_up()))


def _schedule_free() -> Any:
    return public(optax, "contrib.schedule_free")(optax.sgd(0.1), learning_rate=0.1)


def _mechanize() -> Any:
    return public(optax, "contrib.mechanize")(optax.sgd(0.1))


def _times_cosine_similarity() -> Any:
    def times(leaf: Any) -> Any:
        return leaf * optax.cosine_similarity(leaf.ravel(), leaf.ravel())

    def update(updates: Any, state: Any, _: Any = None) -> Any:
        return tree_map(times, updates), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def _public(path: str) -> Callable[[], Any]:
    def build() -> Any:
        return public(optax, path)()

    return build


RUNS = {
    # Stock is right in these: no patch is needed.
    "float32 adam": Run(_adam, jnp.float32, set()),
    "float32 sgd": Run(lambda: optax.sgd(0.1, momentum=0.9), jnp.float32, set()),
    "float32 clipped adamw with warm-up": Run(_clipped_adamw, jnp.float32, set()),
    "float32 array as learning rate": Run(
        lambda: optax.sgd(np.asarray(0.1, np.float32)), jnp.float32, set()
    ),
    "float32 inject_hyperparams": Run(
        lambda: optax.inject_hyperparams(optax.adamw)(_warm_up()), jnp.float32, set()
    ),
    "float32 apply_if_finite": Run(lambda: optax.apply_if_finite(_adam(), 3), jnp.float32, set()),
    "float32 schedule_free": Run(_schedule_free, jnp.float32, set()),
    "bfloat16 adam": Run(_adam, jnp.bfloat16, {"bfloat16_moments"}),
    "float32 adam in 64-bit mode": Run(_adam, jnp.float32, set(), x64),
    # Whether a NaN comes is not known while a step is traced.
    "float32 MultiSteps": Run(
        lambda: optax.MultiSteps(_clipped_adamw(), 2), jnp.float32, {"zero_nans"}
    ),
    # The user asked for casts of the inner state. Up to 0.2.7, the accumulators are cast, too.
    "preserve_dtypes in MultiSteps": Run(
        lambda: optax.MultiSteps(preserve_dtypes(drifting(optax)), 2),
        jnp.bfloat16,
        {"zero_nans", "multi_steps"} if Version("0.2.8") > RELEASE else {"zero_nans"},
    ),
    # Stock is wrong in these.
    "bfloat16 cosine_similarity": Run(_times_cosine_similarity, jnp.bfloat16, {"sums"}),
    "drift in MultiSteps": Run(
        lambda: optax.MultiSteps(drifting(optax), 2), jnp.bfloat16, {"multi_steps", "zero_nans"}
    ),
    "drift in apply_if_finite": Run(
        lambda: optax.apply_if_finite(drifting(optax), 3), jnp.bfloat16, {"conditional"}
    ),
    "bfloat16 inject_hyperparams": Run(
        lambda: optax.inject_hyperparams(optax.adamw)(1e-3),
        jnp.bfloat16,
        {"inject_hyperparams", "bfloat16_moments"},
    ),
    "bfloat16 clipped adamw": Run(
        _clipped_adamw, jnp.bfloat16, {"global_norm", "bfloat16_moments"}
    ),
    "bfloat16 array as learning rate": Run(
        lambda: optax.sgd(np.asarray(0.1, np.float32)), jnp.bfloat16, {"learning_rate"}
    ),
    "bfloat16 schedule_free": Run(_schedule_free, jnp.bfloat16, {"schedule_free"}),
    "bfloat16 fromage with a schedule": Run(
        lambda: optax.fromage(_warm_up()), jnp.bfloat16, {"fromage"}
    ),
    "float16 adam": Run(_adam, jnp.float16, {"float16_eps"}),
    "float16 inject_hyperparams": Run(
        lambda: optax.inject_hyperparams(optax.adamw)(1e-3),
        jnp.float16,
        {"inject_hyperparams", "float16_eps"},
    ),
    "float32 prodigy in 64-bit mode": Run(
        _public("contrib.prodigy"), jnp.float32, {"prodigy"}, x64
    ),
    "bfloat16 mechanize": Run(_mechanize, jnp.bfloat16, {"distance_estimates"}),
    "bfloat16 reduce_on_plateau": Run(
        _public("contrib.reduce_on_plateau"),
        jnp.bfloat16,
        {"reduce_on_plateau"},
        extra=("value", "loss"),  # "loss" up to 0.2.1.
    ),
    "float32 lbfgs": Run(
        _public("lbfgs"),
        jnp.float32,
        {"zoom_linesearch"},
        extra=("value", "grad", "value_fn"),
    ),
    "integer leaf in adam": Run(_adam, jnp.int32, {"promotion"}),
}


def take_steps(run: Run) -> None:
    """Build a transformation, and take some jitted steps on a quadratic."""
    tx = run.build()

    def loss(params: Any) -> Any:
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in params.values())

    params: Any = {"b": jnp.ones((4,), run.dtype), "w": jnp.ones((3, 4), run.dtype)}

    @jax.jit
    def step(state: Any, grads: Any, params: Any) -> Any:
        value = loss(params)
        known = {"value": value, "grad": grads, "value_fn": loss, "loss": value}
        return tx.update(grads, state, params, **{name: known[name] for name in run.extra})[1]

    state = jax.jit(tx.init)(params)
    for _ in range(3):
        state = step(state, tree_map(lambda leaf: leaf // 2, params), params)
    if run.dtype == jnp.float32:
        optax.apply_updates(params, params)


def main() -> None:
    found: dict[str, list[str]] = {}
    before = optax_dtypefix.status()
    for name, run in RUNS.items():
        try:
            with run.mode():
                take_steps(run)
        except NotInReleaseError as error:
            print(f"{name}: no {error}", file=sys.stderr)
            continue
        after = optax_dtypefix.status()
        found[name] = [row.id for row in after if row.reached != before[row.id].reached]
        before = after
    print(json.dumps(found))


if __name__ == "__main__":
    main()
