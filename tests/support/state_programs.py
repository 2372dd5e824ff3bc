"""Programs that read, set or cast what the user sees in an optimizer state, all in bfloat16.

``python -m support.state_programs`` runs each, and prints what it returned: dtypes and numbers.
"""

from __future__ import annotations

import functools
import json
import pickle
import warnings
from typing import Any, Callable

import optax_dtypefix  # isort: skip  # noqa: F401  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax

tree_map = jax.tree_util.tree_map
PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(run: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[run.__name__.replace("_", " ")] = run
    return run


def params() -> Any:
    return {"w": jnp.asarray([1.0, -0.5, 0.25], jnp.bfloat16), "b": jnp.ones(2, jnp.bfloat16)}


def inject(factory: Any = optax.sgd, *args: Any, **kwargs: Any) -> Any:
    return optax.inject_hyperparams(factory)(*(args or (0.1,)), **kwargs)


def scan(tx: Any, change: Callable[[Any, Any], Any], steps: int = 3, before: Any = None) -> Any:
    """Train in a loop that changes params and state before each step."""

    def body(carry: Any, _: Any) -> Any:
        p, state = change(*carry)
        updates, state = tx.update(p, state, p)
        return (optax.apply_updates(p, updates), state), None

    start = params()
    (p, state), _ = jax.lax.scan(body, (start, before or tx.init(start)), None, length=steps)
    return p, shown(state)


def shown(state: Any) -> Any:
    """Return what a user looks at in the state."""
    return getattr(state, "hyperparams", None), getattr(state, "scale", None)


def setting(rate: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function that sets the learning rate."""

    def change(p: Any, state: Any) -> Any:
        state.hyperparams["learning_rate"] = rate(p)
        return p, state

    return change


@program
def set_a_constant() -> Any:
    return scan(inject(), setting(lambda _: jnp.bfloat16(0.05)))


@program
def set_what_a_network_gives() -> Any:
    return scan(inject(), setting(lambda p: jax.nn.sigmoid(p["w"][0])))


@program
def set_with_tree_set() -> Any:
    if not hasattr(getattr(optax, "tree_utils", None), "tree_set"):
        return None
    return scan(
        inject(),
        lambda p, s: (p, optax.tree_utils.tree_set(s, learning_rate=jnp.bfloat16(0.05))),
    )


@program
def set_a_python_number() -> Any:
    return scan(inject(), setting(lambda _: 0.25))


@program
def set_a_numpy_number() -> Any:
    return scan(inject(), setting(lambda _: np.float64(0.25)))


@program
def set_in_a_branch() -> Any:
    def change(p: Any, state: Any) -> Any:
        rate = state.hyperparams["learning_rate"]
        lower = jax.lax.cond(p["w"][0] < 0.95, lambda r: r / 2, lambda r: r, rate)
        return setting(lambda _: lower)(p, state)

    return scan(inject(momentum=0.5), change)


@program
def lower_the_rate_for_a_large_divergence() -> Any:
    """As in PPO: the rate follows the KL divergence."""

    def change(p: Any, state: Any) -> Any:
        rate, divergence = state.hyperparams["learning_rate"], p["w"][0]
        rate = jnp.where(
            divergence > 0.8, rate / 1.5, jnp.where(divergence < 0.2, rate * 1.5, rate)
        )
        return setting(lambda _: rate)(p, state)

    return scan(inject(), change, 5)


@program
def read_the_rate() -> Any:
    def change(p: Any, state: Any) -> Any:
        rate = state.hyperparams["learning_rate"]
        return tree_map(lambda leaf: leaf - rate * leaf, p), state

    return scan(inject(), change)


@program
def cast_the_floats_of_the_state() -> Any:
    def change(p: Any, state: Any) -> Any:
        def narrow(leaf: Any) -> Any:
            return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        return p, tree_map(narrow, state)

    return scan(inject(momentum=0.5), change)


@program
def set_inside_others() -> Any:
    def built(wrap: Callable[[Any], Any], found: Callable[[Any], Any]) -> Any:
        def change(p: Any, state: Any) -> Any:
            found(state).hyperparams["learning_rate"] = jnp.bfloat16(0.5)
            return p, state

        return scan(wrap(inject()), change)

    return [
        built(lambda tx: optax.chain(optax.clip(1.0), tx), lambda s: s[1]),
        built(lambda tx: optax.masked(tx, {"w": True, "b": False}), lambda s: s.inner_state),
        built(
            lambda tx: optax.multi_transform(
                {"tx": tx, "sgd": optax.sgd(0.5)}, {"w": "tx", "b": "sgd"}
            ),
            lambda s: s.inner_states["tx"].inner_state,
        ),
        built(lambda tx: optax.MultiSteps(tx, 2), lambda s: s.inner_opt_state),
    ]


@program
def compile_once() -> Any:
    tx, traces = inject(momentum=0.5), []

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(p: Any, state: Any) -> Any:
        traces.append(1)
        state.hyperparams["learning_rate"] = jax.nn.sigmoid(p["w"][0])
        updates, state = tx.update(p, state, p)
        return optax.apply_updates(p, updates), state

    p = params()
    state = tx.init(p)
    for _ in range(3):
        p, state = step(p, state)
    return p, shown(state), len(traces)


@program
def set_outside_of_the_step() -> Any:
    tx, step = inject(), jax.jit(inject().update)
    p = params()
    state = tx.init(p)
    for rate in (0.5, 0.25, 0.125):
        state.hyperparams["learning_rate"] = jnp.asarray(rate, jnp.bfloat16)
        updates, state = step(p, state, p)
        p = optax.apply_updates(p, updates)
    return p, shown(state)


@program
def map_over_rates() -> Any:
    def train(rate: Any) -> Any:
        return scan(inject(optax.sgd, rate), lambda p, state: (p, state))

    return jax.vmap(train)(jnp.asarray([0.5, 0.25, 0.03], jnp.bfloat16))


@program
def map_over_the_rates_of_states() -> Any:
    tx, p = inject(optax.sgd, 0.0), params()
    states = tree_map(lambda leaf: jnp.stack([leaf, leaf]), tx.init(p))
    states.hyperparams["learning_rate"] = jnp.asarray([0.5, 0.25], jnp.bfloat16)
    updates, states = jax.vmap(lambda s: tx.update(p, s, p))(states)
    return updates, shown(states)


@program
def restore_a_pickle() -> Any:
    tx = inject(optax.adam, 0.1, b2=0.5)
    state = pickle.loads(pickle.dumps(tx.init(params())))
    return scan(tx, lambda p, s: (p, s), before=state)[1]


@program
def multiply_by_the_scale_of_a_plateau() -> Any:
    build = getattr(getattr(optax, "contrib", None), "reduce_on_plateau", None)
    if build is None:
        return None
    tx, p = build(factor=0.5, patience=1), params()
    state = tx.init(p)
    name = "value" if hasattr(state, "scale") else "loss"
    for _ in range(3):
        _, state = tx.update(p, state, p, **{name: 1.0})
    scale = getattr(state, "scale", getattr(state, "lr", None))
    return scale, tree_map(lambda leaf: leaf * scale, p)


def main() -> None:
    found = {}
    for name, run in PROGRAMS.items():
        try:
            found[name] = [
                [str(np.asarray(leaf).dtype), np.asarray(leaf, float).tolist()]
                for leaf in jax.tree_util.tree_leaves(run())
            ]
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Stock optax warns of deprecations.
    main()
