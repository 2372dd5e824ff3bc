"""Find every public transformation of the installed optax, and build each one in its variants.

A function counts if its return annotation is a transformation. Without an annotation, a function
counts if it defines an update function or chains others. This file only lists the arguments that
they require, by name.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import types
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

PyTree = Any

_MODULES = ("optax", "optax.contrib", "optax.transforms")

RATES: dict[str, Callable[[], Any]] = {
    "float": lambda: 0.1,
    "schedule": lambda: _warm_up,
    "array": lambda: jnp.asarray(0.1, jnp.float32),
    "numpy": lambda: np.float64(0.1),
}
"""Kinds of learning rate. The schedule returns a strongly typed float32, as most schedules do."""


def _warm_up(count: Any) -> Any:
    return jnp.asarray(0.1, jnp.float32) * (1 + count).astype(jnp.float32)


_OTHERS = ("inner", "opt", "optimizer", "base_optimizer", "tx", "fast_optimizer")
"""Parameters that are given adam."""


def _arguments() -> dict[str, Callable[[], Any]]:
    """Return a value for each parameter that some transformation requires, by name."""
    import optax

    def adam() -> Any:
        return optax.adam(0.1)

    def every(value: Any) -> Callable[[], Any]:
        return lambda: value

    return {
        **dict.fromkeys(_OTHERS, adam),
        "adv_optimizer": lambda: optax.sgd(0.01),
        "transforms": lambda: {"all": adam()},
        "param_labels": every("all"),
        "inner_factory": every(optax.adam),
        "mask": every(True),
        "freeze_mask": every(False),
        "learning_rate": every(0.1),
        "step_size": every(0.1),
        "step_size_fn": every(_warm_up),
        "slow_step_size": every(0.5),
        "sync_period": every(2),
        "every_k_schedule": every(2),
        "max_consecutive_errors": every(3),
        "should_transform_fn": every(lambda step: step % 2 == 0),
        "should_update_fn": every(lambda step: step % 2 == 0),
        "decay": every(0.9),
        "eta": every(0.01),
        "gamma": every(0.5),
        "seed": every(0),
        "key": lambda: jax.random.PRNGKey(0),
        "clipping": every(0.1),
        "max_delta": every(0.1),
        "max_norm": every(0.1),
        "threshold": every(0.1),
        "l2_norm_clip": every(0.1),
        "noise_multiplier": every(0.1),
        "max_backtracking_steps": every(5),
        "max_linesearch_steps": every(5),
        "measure": every(_squares),
        "measures": every({"squares": _squares}),
        "measure_name": every("squares"),
        "f": every(lambda updates, *_: updates),
    }


def _squares(updates: PyTree, *_: Any, **__: Any) -> Any:
    return sum(jnp.vdot(u, u).real for u in jax.tree_util.tree_leaves(updates))


def _special_builders() -> dict[str, Callable[[Callable[..., Any]], Any]]:
    """Return builders of transformations whose arguments the table above cannot give."""
    import optax

    return {
        "chain": lambda stock: stock(optax.trace(0.9), optax.scale_by_adam()),
        "named_chain": lambda stock: stock(("trace", optax.trace(0.9)), ("adam", optax.adam(0.1))),
        "stateless_with_tree_map": lambda stock: stock(lambda update, _: update),
        "contrib.scale_by_muon": _on_matrices,
        "lookahead": lambda stock: _on_lookahead_params(stock(optax.sgd(0.1), 2, 0.5)),
    }


def _on_matrices(stock: Callable[..., Any]) -> Any:
    """Build ``scale_by_muon``, which only takes matrices and, from 0.2.6 on, needs their axes."""
    import optax

    arguments: dict[str, Any] = {}
    if "weight_dimension_numbers" in inspect.signature(stock).parameters:
        axes = optax.contrib.MuonDimensionNumbers()
        arguments["weight_dimension_numbers"] = lambda tree: jax.tree_util.tree_map(
            lambda _: axes, tree
        )
    return optax.masked(stock(**arguments), {"w": True, "b": False})


def _on_lookahead_params(tx: Any) -> Any:
    """Wrap ``lookahead``, which takes pairs of fast and slow params: pass the same tree twice."""
    import optax

    def pair(params: PyTree) -> Any:
        return optax.LookaheadParams(params, params)

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> Any:
        updates, state = tx.update(grads, state, pair(params))
        return updates.fast, state

    return optax.GradientTransformation(lambda params: tx.init(pair(params)), update)


@dataclasses.dataclass(frozen=True)
class Case:
    """One variant of a transformation.

    Attributes:
      name: the name of the transformation after ``optax.``.
      build: builds the transformation; raises if the arguments above do not fit.
      rate: a key of :data:`RATES` if it takes a learning rate, else empty.
      inside: the wrapper around the transformation, or empty.
    """

    name: str
    build: Callable[..., Any]
    rate: str = ""
    inside: str = ""

    @property
    def per_example(self) -> bool:
        """Whether the transformation takes one gradient for each example of a batch."""
        return self.name.endswith(("dpsgd", "differentially_private_aggregate"))

    @property
    def extra_args(self) -> tuple[str, ...]:
        """The extra arguments that the update requires."""
        return _EXTRA_ARGS.get(self.name.rpartition(".")[2], ())


_LINE_SEARCH = ("value", "grad", "value_fn")
_EXTRA_ARGS = {
    **dict.fromkeys(
        ("lbfgs", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"), _LINE_SEARCH
    ),
    **dict.fromkeys(("polyak_sgd", "scale_by_polyak", "momo", "momo_adam"), ("value",)),
    **dict.fromkeys(("sophia", "hutchinson_estimator_diag_hessian"), ("obj_fn",)),
    "reduce_on_plateau": ("value", "loss"),  # ``loss`` up to 0.2.1.
}


def cases(only: tuple[str, ...] = ()) -> Iterator[Case]:
    """Yield all variants of all transformations, or of the ones named in ``only``."""
    for name, function in sorted(public_transformations().items()):
        if only and name not in only:
            continue
        rates = _rates(function)
        for rate in rates or ("",):
            yield Case(name, functools.partial(_build, name, function, rate), rate)
        base = functools.partial(_build, name, function, rates[0] if rates else "")
        for wrapper in WRAPPERS:
            if name not in WRAPPERS or name != wrapper:
                inside = functools.partial(_wrapped, wrapper, base, function)
                yield Case(name, inside, rates[0] if rates else "", wrapper)


WRAPPERS = ("MultiSteps", "apply_if_finite", "inject_hyperparams")


def _wrapped(wrapper: str, base: Callable[[], Any], function: Callable[..., Any]) -> Any:
    import optax

    if wrapper == "MultiSteps":
        return optax.MultiSteps(base(), 2)
    if wrapper == "apply_if_finite":
        return optax.apply_if_finite(base(), 3)
    if "learning_rate" not in inspect.signature(function).parameters:
        # It injects numbers. A transformation without one gets a learning rate around it.
        return optax.inject_hyperparams(_with_rate(base))(learning_rate=0.1)
    return optax.inject_hyperparams(_by_rate(function))(learning_rate=0.1)


def _with_rate(base: Callable[[], Any]) -> Callable[..., Any]:
    import optax

    def factory(learning_rate: Any) -> Any:
        tx = base()
        if isinstance(tx, optax.MultiSteps):  # ``chain`` takes one from 0.1.5 on.
            tx = tx.gradient_transformation()
        return optax.chain(tx, optax.scale(learning_rate))

    return factory


def _by_rate(function: Callable[..., Any]) -> Callable[..., Any]:
    others = {k: v for k, v in required(function).items() if k != "learning_rate"}

    def factory(learning_rate: Any) -> Any:
        return function(learning_rate=learning_rate, **others)

    return factory


def public_transformations() -> dict[str, Callable[..., Any]]:
    """Return public transformations by name, each once, even if several modules export it."""
    functions: dict[str, Callable[..., Any]] = {}
    seen: list[Any] = []
    for module_name in _MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:  # Old releases have neither contrib nor transforms.
            continue
        prefix = module_name.partition(".")[2]
        for name, value in sorted(vars(module).items()):
            if name.startswith("_") or any(value is other for other in seen):
                continue
            if _makes_a_transformation(value):
                seen.append(value)
                functions[f"{prefix}.{name}" if prefix else name] = value
    return functions


def takes_another(function: Callable[..., Any]) -> str:
    """Return the parameter of a public transformation that needs another one, or nothing."""
    others = (*_OTHERS, "transforms", "inner_factory", "args")
    parameters = inspect.signature(function).parameters.values()
    needed = (each.name for each in parameters if each.default is each.empty)
    return next((name for name in needed if name in others), "")


def _makes_a_transformation(value: Any) -> bool:
    if inspect.isclass(value):  # MultiSteps. A stateful schedule has an update without params.
        update = getattr(value, "update", None)
        return inspect.isfunction(update) and "params" in inspect.signature(update).parameters
    if not callable(value):
        return False
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return False
    if signature.return_annotation is not inspect.Signature.empty:
        return "GradientTransformation" in str(signature.return_annotation)
    code = getattr(inspect.unwrap(value), "__code__", None)
    if "chain" in getattr(code, "co_names", ()):  # As dog and dowg are built.
        return True
    return any(
        isinstance(constant, types.CodeType) and constant.co_name == "update_fn"
        for constant in getattr(code, "co_consts", ())
    )


def _rates(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the kinds of learning rate that a function accepts, by its annotation."""
    parameter = inspect.signature(function).parameters.get("learning_rate")
    if parameter is None:
        return ()
    scheduled = any(word in str(parameter.annotation) for word in ("Callable", "Schedule"))
    return tuple(rate for rate in RATES if rate != "schedule" or scheduled)


def required(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a value for each parameter that a transformation requires."""
    arguments = _arguments()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: arguments[name]()
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in variadic
    }


def _build(name: str, function: Callable[..., Any], rate: str, **more: Any) -> Any:
    if name in _special_builders():
        return _special_builders()[name](function)
    arguments = {**required(function), **more}
    if rate:
        arguments["learning_rate"] = RATES[rate]()
    made = function(**arguments)
    return made(learning_rate=0.1) if name.startswith("inject_") else made
