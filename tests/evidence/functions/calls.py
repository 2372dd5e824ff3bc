"""Call the public functions that are no transformations, on a tree."""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax.numpy as jnp
import optax

from optax_dtypefix._diagnosis.check_command.worker import loss
from support.functions import CALLS, find
from support.trees import tree_of

_SCHEDULES: dict[str, tuple[Any, ...]] = {
    "constant_schedule": (0.1,),
    "cosine_decay_schedule": (0.1, 10),
    "cosine_onecycle_schedule": (10, 0.1),
    "exponential_decay": (0.1, 10, 0.5),
    "join_schedules": ([lambda _: 0.1, lambda _: 0.2], [5]),
    "linear_onecycle_schedule": (10, 0.1),
    "linear_schedule": (0.1, 0.2, 10),
    "piecewise_constant_schedule": (0.1, {5: 0.5}),
    "piecewise_interpolate_schedule": ("linear", 0.1, {5: 0.5}),
    "polynomial_schedule": (0.1, 0.2, 2.0, 10),
    "sgdr_schedule": (
        [{"init_value": 0.0, "peak_value": 0.1, "decay_steps": 10, "warmup_steps": 5}],
    ),
    "warmup_constant_schedule": (0.1, 0.2, 10),
    "warmup_cosine_decay_schedule": (0.0, 0.1, 5, 10),
    "warmup_exponential_decay_schedule": (0.0, 0.1, 5, 10, 0.5),
}


def _schedule(arguments: tuple[Any, ...], function: Any, tree: Any) -> Any:
    del tree
    return function(*arguments)(jnp.asarray(3, jnp.int32))


def _with_number(call: Callable[..., Any], function: Any, tree: Any) -> Any:
    return call(function, tree, 0.7)


def _corrected(function: Any, tree: Any) -> Any:
    return function(tree, 0.9, jnp.asarray(1, jnp.int32))


def _hessian(function: Any, tree: Any) -> Any:
    leaf = tree["b"]
    return function(lambda p, x, _: (x * p**2).sum(), leaf, leaf, leaf)


def _batches(function: Any, tree: Any) -> Any:
    mean = optax.microbatching.AccumulationType.MEAN
    return function(lambda x: x.sum(), 0, 1, mean)(tree["b"])


def _averaged(function: Any, tree: Any) -> Any:
    tx = optax.contrib.schedule_free(optax.sgd(0.1), 0.1)
    return function(tx.init(tree), tree)


def _updated(function: Any, tree: Any) -> Any:
    new = tree_of(jnp.float32)  # Of another dtype, as a user may have them.
    return function(new, tree, jnp.asarray(1, jnp.int32), 2)


def _from_state(function: Any, tree: Any) -> Any:
    return function(loss)(tree, state=optax.lbfgs().init(tree))


_ALL: dict[str, Callable[[Any, Any], Any]] = {
    **{name: functools.partial(_schedule, given) for name, given in _SCHEDULES.items()},
    **{path: functools.partial(_with_number, call) for path, call in CALLS.items()},
    "cosine_similarity": lambda similarity, tree: similarity(tree["b"], tree["b"]),
    "apply_updates": lambda apply, tree: apply(tree, tree),
    "incremental_update": lambda update, tree: update(tree, tree, 0.1),
    "periodic_update": _updated,
    "global_norm": lambda norm, tree: norm(tree),
    "tree.norm": lambda norm, tree: norm(tree),
    "tree.sum": lambda total, tree: total(tree),
    "tree.vdot": lambda vdot, tree: vdot(tree, tree),
    "bias_correction": _corrected,
    "tree.bias_correction": _corrected,
    "tree_utils.tree_bias_correction": _corrected,
    "hessian_diag": _hessian,
    "second_order.hessian_diag": _hessian,
    "microbatching.microbatch": _batches,
    "contrib.schedule_free_eval_params": _averaged,
    "value_and_grad_from_state": _from_state,
}


def available(*only: str) -> dict[str, Callable[[Any], Any]]:
    """Return those that the installed optax has, each as a function of a tree."""
    found = {path: find(path) for path in _ALL if not only or path in only}
    return {
        path: functools.partial(_ALL[path], function)
        for path, function in found.items()
        if function is not None
    }
