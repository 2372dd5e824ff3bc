"""Run optimizers with moments for 1,200 steps, and save their last updates.

``python -m evidence.stalls.measure FILE DTYPE [NAME...]`` runs each optimizer in each mix of
dtypes, with five kinds of gradients at once. With ``OPTAX_DTYPEFIX=off`` it runs stock, and with
``JAX_ENABLE_X64=1`` the reference: stock in float64, on the same numbers.
"""

from __future__ import annotations

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import sys
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS, LAST, CHANGE, SHAPE = 1200, 100, 300, (4, 8)
KINDS = ("shrinking", "constant", "sparse", "growing", "small")
MIXES = {
    "all": (("half", "half"), ("half", "half")),
    "half first": (("half", "float32"), ("half", "float32")),
    "half last": (("float32", "half"), ("float32", "half")),
    "wide": (("half", "half"), ("float32", "float32")),
}
"""The dtypes of two params, and those of their gradients."""

contrib = getattr(optax, "contrib", optax)


def gradients(dtype: str) -> Any:
    """Return the gradients of each step for each kind, before they are rounded."""
    random = np.random.default_rng(0)
    normal = random.normal(size=(STEPS, *SHAPE))
    late = (np.arange(STEPS) >= CHANGE)[:, None, None]
    rows = {
        "shrinking": np.where(late, 0.1 * normal, normal),
        "constant": np.broadcast_to(normal[:1], normal.shape),
        "sparse": normal * (random.random(normal.shape) < 0.1),
        "growing": np.where(late, 10 * normal, normal),
        "small": normal * (1e-6 if dtype == "bfloat16" else 1e-3),
    }
    return np.stack([rows[kind] for kind in KINDS])


def public(name: str) -> Any:
    return getattr(optax, name, None) or getattr(contrib, name, None)


_WITHOUT_RATE = ("adadelta", "cocob", "dadapt_adamw", "prodigy")
_WITH_RATE = (
    *("adam", "adamw", "nadam", "adamax", "amsgrad", "adabelief", "yogi", "radam", "rmsprop"),
    *("novograd", "adan", "lamb", "lion", "adopt", "ademamix", "simplified_ademamix", "adagrad"),
    *("sm3", "schedule_free_adamw", "muon"),
)


def optimizers() -> dict[str, Callable[[], Any]]:
    """List the optimizers that the installed optax has."""
    found: dict[str, Callable[[], Any]] = {}

    def add(label: str, name: str, *args: Any, **kwargs: Any) -> None:
        if public(name) is not None:
            found[label] = lambda: public(name)(*args, **kwargs)

    for name in _WITH_RATE:
        add(name, name, 1.0)
    for name in _WITHOUT_RATE:
        add(name, name)
    add("adam, b2=0.9999", "adam", 1.0, b2=0.9999)
    add("adam, float32 b2", "adam", 1.0, b2=np.float32(0.999))
    add("adafactor", "adafactor", 1.0, min_dim_size_to_factor=2)
    add("adafactor, not factored", "adafactor", 1.0)
    add("acprop", "scale_by_acprop")
    add("madgrad", "scale_by_madgrad", 1e-2)
    add("rmsprop, decay=0.999", "rmsprop", 1.0, decay=0.999)
    add("rmsprop, centered", "rmsprop", 1.0, decay=0.99, centered=True)
    add("momentum", "sgd", 1.0, momentum=0.9)
    add("ema", "ema", 0.99, debias=False)
    add("apply_every", "apply_every", 100)
    for name in ("adam", "adamw", "rmsprop"):
        found[f"inject {name}"] = lambda name=name: optax.inject_hyperparams(public(name))(1.0)
    found["MultiSteps"] = lambda: optax.MultiSteps(optax.adam(1.0), 4).gradient_transformation()
    found["masked"] = lambda: optax.masked(optax.adam(1.0), {"a": True, "b": False})
    found["chain, float32 scale"] = lambda: optax.chain(
        optax.scale(jnp.float32(1 / 128)), optax.adam(1.0)
    )
    found["chain, float32 decay"] = lambda: optax.chain(
        optax.add_decayed_weights(jnp.float32(1e-4)), optax.adam(1.0)
    )
    if normalize := public("normalize_by_update_norm"):
        found["chain, norm"] = lambda: optax.chain(normalize(), optax.scale_by_adam())
    if mechanize := public("mechanize"):
        found["mechanize"] = lambda: mechanize(optax.adam(1.0))
    if schedule_free := public("schedule_free"):
        found["schedule_free"] = lambda: schedule_free(optax.adam(1.0), learning_rate=1.0)
        found["schedule_free sgd"] = lambda: schedule_free(optax.sgd(1.0), learning_rate=1.0)
    return found


def updates_of(tx: Any, mix: str, half: str) -> dict[str, Any]:
    """Return the last updates of both params, for each kind of gradients."""
    dtypes = [[half if d == "half" else d for d in of] for of in MIXES[mix]]
    exact = gradients(half)
    grads = {k: jnp.asarray(np.asarray(exact), d) for k, d in zip("ab", dtypes[1])}
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        grads = jax.tree_util.tree_map(lambda leaf: leaf.astype(jnp.float64), grads)
        dtypes[0] = ["float64"] * 2
    wide = jax.dtypes.canonicalize_dtype(np.float64)
    params = {k: jnp.ones(SHAPE, d) for k, d in zip("ab", dtypes[0])}

    def step(state: Any, now: Any) -> Any:
        updates, after = tx.update(now, state, params)
        return after, updates

    def in_scan(state: Any, now: Any) -> Any:
        after, updates = step(state, now)
        # On stock some states change their dtypes now and then.
        after = jax.tree_util.tree_map(lambda new, old: new.astype(old.dtype), after, state)
        # XLA on the CPU copies a stack in half precision in each step.
        return after, jax.tree_util.tree_map(lambda leaf: leaf.astype(wide), updates)

    def run(grads: Any) -> Any:
        state = jax.tree_util.tree_map(jnp.asarray, tx.init(params))
        first = 3  # On stock a state may need some steps until its dtypes stay.
        for now in range(first):
            state, _ = step(state, jax.tree_util.tree_map(lambda leaf, now=now: leaf[now], grads))
        rest = jax.tree_util.tree_map(lambda leaf: leaf[first:], grads)
        updates = jax.lax.scan(in_scan, state, rest)[1]
        return jax.tree_util.tree_map(lambda leaf: leaf[-LAST:], updates)

    found = jax.jit(jax.vmap(run))(grads)
    return {name: np.asarray(leaf, np.float64) for name, leaf in found.items()}


def errors(updates: Any, reference: Any) -> Any:
    """Return the relative error of the last updates for each kind; infinite where one is NaN."""
    with np.errstate(all="ignore"):
        size = np.abs(reference).sum((1, 2, 3))
        error = np.abs(updates - reference).sum((1, 2, 3)) / np.where(size == 0, 1, size)
    return np.where(np.isfinite(error), error, np.inf)


def main(file: str, half: str, *names: str) -> None:
    """Save the last updates of each optimizer. The names of those that raise are left out."""
    found = {}
    for label, build in optimizers().items():
        if names and label not in names:
            continue
        for mix in MIXES:
            try:
                updates = updates_of(build(), mix, half)
            except (TypeError, ValueError) as error:
                print(f"{label}, {mix}: {error}", file=sys.stderr)
                continue
            found.update({f"{label}|{mix}|{leaf}": value for leaf, value in updates.items()})
    np.savez(file, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
