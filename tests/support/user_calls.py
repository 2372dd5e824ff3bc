"""Count how often wrappers call a user's code, and print what it raises, for two processes.

``python -m support.user_calls [NAME...]`` prints JSON of all cells, or of those named. One cell is
a wrapper around a user's transformation, or a transformation with a user's function, in some
dtypes; the user's code runs or fails.
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from typing import Any, Callable

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import optax

from support.trees import tree_map

DTYPES = {
    "float32": (jnp.float32, jnp.float32),
    "bfloat16": (jnp.bfloat16, jnp.bfloat16),
    "wide gradients": (jnp.bfloat16, jnp.float32),
}
MISTAKE = "float32 and bfloat16 in the text of a user"


class Watched:
    """Functions that a user could write. They count their calls, and raise if told to."""

    def __init__(self, *, fails: bool) -> None:
        self.calls: dict[str, int] = {}
        self.fails = fails

    def count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def update(self, start: Callable[[Any], Any], after: Callable[[Any], Any]) -> Any:
        """Build a transformation whose state starts and goes on like this."""

        def init(params: Any) -> Any:
            self.count("init")
            return start(params)

        def update(grads: Any, state: Any, params: Any = None, **_: Any) -> Any:
            del params
            self.count("update")
            if self.fails:
                raise TypeError(MISTAKE)
            return grads, after(state)

        kind = getattr(optax, "GradientTransformationExtraArgs", optax.GradientTransformation)
        return kind(init, update)

    def function(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.count(name)
            if self.fails and self.calls[name] > 1:
                raise TypeError(MISTAKE)
            return function(*args, **kwargs)

        return watched

    def schedule(self) -> Callable[..., Any]:
        return self.function("schedule", lambda count: jnp.asarray(0.1, jnp.float32) / (1 + count))

    def mask(self) -> Callable[..., Any]:
        return self.function("mask", lambda tree: tree_map(lambda _: True, tree))

    def labels(self) -> Callable[..., Any]:
        return self.function("labels", lambda tree: tree_map(lambda _: "all", tree))

    def axes(self) -> Callable[..., Any]:
        numbers = optax.contrib.MuonDimensionNumbers
        return self.function(
            "axes",
            lambda tree: tree_map(lambda leaf: numbers() if leaf.ndim == 2 else None, tree),
        )

    def often(self) -> Callable[..., Any]:
        return self.function("often", lambda step, *_, **__: step % 2 == 0)

    def counter(self) -> Any:
        return self.update(lambda _: jnp.zeros((), jnp.int32), lambda count: count + 1)

    def moment(self) -> Any:
        return self.update(
            lambda params: tree_map(jnp.zeros_like, params),
            lambda state: tree_map(lambda leaf: leaf * 0.5, state),
        )


def wrappers() -> dict[str, Callable[[Any], Any]]:
    """Return by name what the release can wrap around a transformation."""
    contrib, found = getattr(optax, "contrib", None), dict[str, Callable[[Any], Any]]()

    def add(name: str, build: Callable[[Any, Any], Any], module: Any = optax) -> None:
        function = getattr(module, name, None)
        if function is not None:
            found[name] = lambda tx: build(function, tx)

    def pairs(function: Any, tx: Any) -> Any:
        made = function(tx, 2, 0.5)

        def both(params: Any) -> Any:
            return optax.LookaheadParams(params, params)

        return optax.GradientTransformation(
            lambda params: made.init(both(params)),
            lambda grads, state, params: made.update(grads, state, both(params)),
        )

    add("chain", lambda f, tx: f(tx, optax.adam(0.1)))
    add("named_chain", lambda f, tx: f(("user", tx), ("adam", optax.adam(0.1))))
    add("MultiSteps", lambda f, tx: f(tx, 2))
    add("apply_if_finite", lambda f, tx: f(tx, 3))
    add("flatten", lambda f, tx: f(tx))
    add("split_real_and_imaginary", lambda f, tx: f(tx), contrib)
    add("masked", lambda f, tx: f(tx, {"w": True, "b": False}))
    add("multi_transform", lambda f, tx: f({"all": tx}, {"w": "all", "b": "all"}))
    add("partition", lambda f, tx: f({"all": tx}, {"w": "all", "b": "all"}))
    add("maybe_update", lambda f, tx: f(tx, lambda step: step % 2 == 0))
    add("conditionally_transform", lambda f, tx: f(tx, lambda step, **_: step % 2 == 0))
    add("conditionally_mask", lambda f, tx: f(tx, lambda step, **_: step % 2 == 0))
    add("lookahead", pairs)
    add("sam", lambda f, tx: f(optax.sgd(0.1), tx), contrib)
    add("schedule_free", lambda f, tx: f(tx, 0.1), contrib)
    add("mechanize", lambda f, tx: f(tx), contrib)
    add("inject_hyperparams", lambda f, tx: f(lambda r: optax.chain(tx, optax.sgd(r)))(0.1))
    found["apply_every in a chain"] = lambda tx: optax.chain(tx, optax.apply_every(2))
    found["inject_hyperparams(schedule)"] = lambda tx: optax.inject_hyperparams(
        lambda r: optax.chain(tx, optax.sgd(r))
    )(lambda count: jnp.asarray(0.1, jnp.float32) / (1 + count))
    found["MultiSteps(inject_hyperparams)"] = lambda tx: optax.MultiSteps(
        optax.inject_hyperparams(lambda r: optax.chain(tx, optax.sgd(r)))(0.1), 2
    )
    return found


def around_functions() -> dict[str, Callable[[Watched], Any]]:
    """Return by name transformations that take a schedule, a mask or another function."""
    contrib, found = getattr(optax, "contrib", None), dict[str, Callable[[Watched], Any]]()

    def add(name: str, build: Callable[[Any, Watched], Any], module: Any = optax) -> None:
        function = getattr(module, name, None)
        if function is not None:
            found[name] = lambda user: build(function, user)

    def rated(function: Any, user: Watched) -> Any:
        return function(user.schedule())

    for name in ("adam", "sgd", "lion", "fromage", "noisy_sgd", "novograd", "adafactor", "sm3"):
        add(name, rated)
    for name in ("prodigy", "dog", "dowg", "dadapt_adamw", "cocob", "adopt"):
        if "learning_rate" in inspect.signature(getattr(contrib, name, rated)).parameters:
            add(name, lambda f, user: f(learning_rate=user.schedule()), contrib)
    add("polyak_sgd", rated)
    add("schedule_free_sgd", lambda f, user: f(learning_rate=user.schedule()), contrib)
    add("scale_by_schedule", rated)
    for name, argument in (("ademamix", "alpha"), ("adopt", "clip_value_fn")):
        add(
            f"scale_by_{name}",
            lambda f, user, argument=argument: f(**{argument: user.schedule()}),
            contrib,
        )
    if (
        "weight_dimension_numbers"
        in inspect.signature(getattr(contrib, "scale_by_muon", rated)).parameters
    ):
        add("scale_by_muon", lambda f, user: f(weight_dimension_numbers=user.axes()), contrib)
    add("adamw", lambda f, user: f(0.1, mask=user.mask()))
    add("masked", lambda f, user: f(optax.adam(0.1), user.mask()))
    add("multi_transform", lambda f, user: f({"all": optax.adam(0.1)}, user.labels()))
    add("inject_hyperparams", lambda f, user: f(optax.adam)(user.schedule()))
    add("MultiSteps", lambda f, user: f(optax.adam(0.1), user.function("k", lambda _: 2)))
    add("conditionally_transform", lambda f, user: f(optax.adam(0.1), user.often()))
    add("conditionally_mask", lambda f, user: f(optax.adam(0.1), user.often()))
    add("maybe_update", lambda f, user: f(optax.adam(0.1), user.often()))
    return found


def tree(dtype: Any) -> Any:
    return {"w": jax.ShapeDtypeStruct((3, 4), dtype), "b": jax.ShapeDtypeStruct((4,), dtype)}


def one(build: Callable[[Watched], Any], dtypes: tuple[Any, Any], *, fails: bool) -> Any:
    """Trace ``init`` and a step. Eagerly, the same Python code runs, and more is compiled."""
    user = Watched(fails=fails)
    stages: list[dict[str, int]] = []

    def step(params: Any, grads: Any) -> Any:
        tx = build(user)
        stages.append(dict(user.calls))
        state = tx.init(params)
        stages.append(dict(user.calls))
        extra = (
            {"value": jnp.float32(1)} if "value" in inspect.signature(tx.update).parameters else {}
        )
        return tx.update(grads, state, params, **extra)

    error = None
    try:
        jax.eval_shape(step, *map(tree, dtypes))
    except Exception as raised:
        error = {
            "class": type(raised).__name__,
            "users": str(raised) == MISTAKE,
            "context": type(raised.__context__).__name__,
        }
    return {"calls": [*stages, user.calls], "error": error}


def main() -> None:
    cells: dict[str, Callable[[Watched], Any]] = {
        f"{name} around {kind}": lambda user, wrap=wrap, kind=kind: wrap(getattr(user, kind)())
        for name, wrap in wrappers().items()
        for kind in ("counter", "moment")
    }
    cells.update((f"{name} with it", build) for name, build in around_functions().items())
    found = {
        f"{name}, {dtypes}, {'fails' if fails else 'runs'}": one(build, given, fails=fails)
        for name, build in cells.items()
        if not sys.argv[1:] or name in sys.argv[1:]
        for dtypes, given in DTYPES.items()
        for fails in (False, True)
    }
    print(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
