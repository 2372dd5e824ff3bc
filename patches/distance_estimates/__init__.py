"""distance_estimates: dadapt_adamw, dog, dowg, momo, momo_adam, mechanize keep float32 scalars.

These optimizers find their step size from a distance that they estimate: from sums over all steps
(D-Adaptation, https://arxiv.org/abs/2301.07733; DoG, https://arxiv.org/abs/2302.12022; DoWG,
https://arxiv.org/abs/2305.16284), averages (MoMo, https://arxiv.org/abs/2305.07583) or a bet
(Mechanic, https://arxiv.org/abs/2306.00144). The sums are a few scalars.

From 0.2.4 on stock keeps these scalars in the lowest dtype of the params. In bfloat16 a sum of
equal terms stops at 256 terms. In float16 a first distance of 1e-6 and an eps of 1e-8 are 0, and
0/0 is nan. An integer leaf makes the scalars integers. Up to 0.2.3 the scalars are float32, and
updates of bfloat16 params are float32 too. In 64-bit mode ``beta ** count`` of a Python float and
an int32 array is float64, and the state and the updates become float64.

Stock squares complex numbers where their absolute values are meant, and compares real parts:
dadapt_adamw hardly moves, and momo takes complex step sizes.

Here stock runs in 32-bit mode on a list of the leaves, all in float32, or in float64 if one leaf
is, so that nothing is promoted. A complex leaf becomes a pair of real leaves: the algorithms are
made for real vectors. No upstream issue was found for the scalars; the linked issues are related.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    PyTree,
    cast,
    cast_like,
    dtype_of,
    is_inexact,
    leaves,
    same_structure,
    strip_weak_type,
    tree_map,
    unflatten_like,
)
from ..._contract.kinds import promote_initial_state
from ..._contract.promotion import standard_promotion
from ..._contract.state import cast_back
from ..._contract.updates import cast_updates, same_dtypes
from ..._contract.widths import compute_dtype, statistics_dtype
from ..._contract.x64 import is_x64, without_x64
from ..._engine.patch import Stock
from .._support.arguments import arguments_of, array_in
from .._support.rebuild import call_of, rebuild
from .._support.representation import Representation, average_dtype
from .._support.stock_dtypes import replace_user_code, start_as_stock

# Fields of stock's states with a leaf for each param; all others are scalars.
_COPIES = frozenset({"init_params", "x0"})
_AVERAGES = frozenset({"exp_avg", "exp_avg_sq", "grad_sum"})
_TREES = _COPIES | _AVERAGES


def replace(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a stock function, with the arguments of the installed release.

    The state is stock's. Its scalars are float32, or float64 if all params are. Its trees have
    stock's dtypes. Averages of Adam in float16, where the square of a gradient is 0, and averages
    of integers are exceptions: they are float32. Updates are as wide as gradients and params.
    """
    built = stock(*args, **kwargs)  # Checks the arguments, and has the right type.
    arguments = arguments_of(stock, args, kwargs)
    known = functools.partial(stock, **replace_user_code(arguments))

    def init_fn(params: PyTree) -> Any:
        return start_as_stock(known(), _start(stock, arguments, params), params)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None or not same_structure(updates, params, *_trees(state)):
            result: tuple[PyTree, Any] = built.update(updates, state, params, **extra_args)
            return result  # Stock raises, most often.
        new_updates, new_state = _step(stock, arguments, (updates, state, params), extra_args)
        return cast_updates(new_updates, updates, params), cast_back(new_state, state)

    return rebuild(built, call_of(stock, args, kwargs), update_fn, init_fn, also_in_float32=True)


def _start(stock: Stock, arguments: dict[str, Any], params: PyTree) -> Any:
    """Start a state in its final dtypes."""
    problem = Representation.of(compute_dtype(params), params)
    tx = stock(**_convert_arguments(arguments, problem.dtype, params))
    with standard_promotion():
        state = without_x64(tx.init, problem.to_list(params))
    scalars_in = statistics_dtype(params)
    squares = hasattr(state, "exp_avg_sq")
    averages_in = [average_dtype(p, squares=squares) for p in leaves(params)]

    def final(name: str, field: Any) -> Any:
        if name not in _TREES:
            return cast(field, scalars_in if is_inexact(field) else dtype_of(field))
        tree = problem.to_tree(field, params)
        if name in _COPIES:  # Some releases start with zeros and copy in the first step.
            return cast_like(tree, params)
        return unflatten_like(params, map(cast, leaves(tree), averages_in))

    return _map_fields(final, state)


def _step(
    stock: Stock,
    arguments: dict[str, Any],
    given: tuple[PyTree, Any, PyTree],
    extra_args: dict[str, Any],
    base: Callable[[], PyTree] | None = None,
) -> tuple[PyTree, Any]:
    """Take a step of stock on lists of leaves in one real dtype.

    Args:
      stock: builds the transformation.
      arguments: of ``stock``.
      given: gradients, state and params.
      extra_args: of the update.
      base: for ``mechanize``, returns the updates of the base optimizer. One may be complex where
        gradient and param are real: stock only scales and adds them.

    Returns:
      Updates and new state in that dtype, complex where a tree is.
    """
    updates, state, params = given
    problem = Representation.of(compute_dtype(given), updates, params, *_trees(state))
    value = extra_args.get("value")
    if value is not None:
        extra_args = {**extra_args, "value": _cast_loss(value, problem.dtype)}
    hyperparameters = _convert_arguments(arguments, problem.dtype, updates, state)
    if base is not None:
        if _is_in_32_bits(problem.dtype):
            base()  # In the user's mode, before stock runs in 32-bit mode.
        hyperparameters["base_optimizer"] = _returning(lambda: problem.to_list(base()))

    def to_stock(name: str, field: Any) -> Any:
        if name in _TREES:
            return problem.to_list(field)
        return cast(field, problem.dtype) if is_inexact(field) else field

    def from_stock(name: str, field: Any, old: Any) -> Any:
        if name not in _TREES:
            return field
        tree = problem.to_tree(field, old)
        return cast_like(tree, old) if name in _COPIES else tree

    def run(*lists: Any) -> Any:
        return stock(**hyperparameters).update(*lists, **extra_args)

    lists = problem.to_list(updates), _map_fields(to_stock, state), problem.to_list(params)
    with standard_promotion():
        new_updates, new_state = without_x64(run, *lists)
    new_state = _map_fields(from_stock, new_state, state)
    result = problem.to_tree(new_updates, updates), new_state
    if base is not None:
        _free(lists, keep=(given, result))
    return result


def _free(copies: PyTree, keep: PyTree) -> None:
    """Delete the copies of an eager step: jax 0.4.25 keeps what a branch of ``cond`` closes over.

    A derivative may need them. Then a result is a tracer.
    """
    kept = leaves(keep)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in kept):
        return
    ids = set(map(id, kept))
    for leaf in leaves(copies):
        if isinstance(leaf, jax.Array) and id(leaf) not in ids:
            leaf.delete()


def dadapt_adamw(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Do as :func:`replace`, and keep the distance while all gradients are 0."""
    tx = replace(stock, *args, **kwargs)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        new_updates, new_state = tx.update(updates, state, params, **extra_args)
        is_known = jnp.isfinite(new_state.estim_lr)
        distance = jnp.where(is_known, new_state.estim_lr, state.estim_lr)
        return new_updates, new_state._replace(estim_lr=distance)

    return rebuild(tx, call_of(stock, args, kwargs), update_fn, also_in_float32=True)


def mechanize(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Do as :func:`replace`, around a base optimizer that sees its usual inputs."""
    import optax

    built = stock(*args, **kwargs)
    arguments = arguments_of(stock, args, kwargs)
    base = optax.with_extra_args_support(arguments["base_optimizer"])

    def init_fn(params: PyTree) -> Any:
        state = _start(stock, {**arguments, "base_optimizer": _returning(tuple)}, params)
        base_state = strip_weak_type(promote_initial_state(base.update, base.init(params), params))
        return state._replace(base_optimizer_state=base_state)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None or not same_structure(updates, params, state.x0):
            return built.update(updates, state, params)  # type: ignore[no-any-return]  # It raises.
        before = state.base_optimizer_state

        @functools.cache
        def base_step() -> tuple[PyTree, PyTree]:
            result: tuple[PyTree, PyTree] = base.update(updates, before, params, **extra_args)
            if not same_structure(result[0], params):
                built.update(updates, state, params)  # It raises.
            return result

        given = updates, state._replace(base_optimizer_state=()), params
        new_updates, new_state = _step(stock, arguments, given, {}, lambda: base_step()[0])
        new_state = cast_back(new_state, given[1])
        base_updates, after = base_step()
        # The state and the updates of the base optimizer show which dtypes the user asked for.
        bounded = cast_updates(base_updates, updates, params, before)
        if same_dtypes(updates, params):
            after = cast_back(after, before)
        new_state = new_state._replace(base_optimizer_state=after)
        return cast_updates(new_updates, updates, params, bounded), new_state

    return rebuild(built, call_of(stock, args, kwargs), update_fn, init_fn, also_in_float32=True)


def _returning(updates: Callable[[], PyTree]) -> Any:
    """Build a transformation that gives these updates, and has no state."""
    import optax

    return optax.GradientTransformation(lambda _: (), lambda *_: (updates(), ()))


def tree_norm(stock: Stock, tree: PyTree) -> Any:
    """Replace the norm of ``mechanize`` in 0.1.7, which newer jax cannot run."""
    try:
        return stock(tree)
    except AttributeError:
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves(tree)))


def _has_trees(node: Any) -> bool:
    """Check whether this is a state with trees, perhaps one of several in the state of a chain."""
    return not _TREES.isdisjoint(getattr(node, "_fields", ()))


def _trees(state: Any) -> list[PyTree]:
    """List the trees of a state that are like the params."""
    parts = filter(_has_trees, jax.tree_util.tree_leaves(state, is_leaf=_has_trees))
    return [field for part in parts for name, field in part._asdict().items() if name in _TREES]


def _map_fields(function: Callable[..., Any], state: Any, *others: Any) -> Any:
    """Replace each field of a state with trees; the rest of a chain has only counts."""

    def replace(part: Any, *others: Any) -> Any:
        if not _has_trees(part):
            return part
        return type(part)(*map(function, part._fields, part, *others))

    return tree_map(replace, state, *others, is_leaf=_has_trees)


def _convert_arguments(
    arguments: dict[str, Any], dtype: Any, tree: PyTree, state: Any = None
) -> dict[str, Any]:
    """Convert the arguments to those for a list of leaves in one dtype.

    Args:
      arguments: with arrays, masks and schedules as the user gave them.
      dtype: of arrays and, for a state, of the values of schedules.
      tree: what a mask is made for: params in ``init``, then gradients.
      state: before the step.
    """
    found: dict[str, Any] = tree_map(lambda leaf: array_in(leaf, dtype), dict(arguments))
    if arguments.get("mask") is not None:
        found["mask"] = _list_mask(arguments["mask"], tree)
    for name in ("learning_rate", "weight_decay"):
        if state is not None and callable(arguments.get(name)):
            found[name] = _fit_schedule(arguments[name], dtype, _find_count(name, state))
    return found


def _cast_loss(value: Any, dtype: Any) -> Any:
    """Cast a loss to ``dtype``. 0.2.5 and 0.2.6 need a NumPy method, which Python numbers lack."""
    return array_in(value, dtype) if hasattr(value, "dtype") else np.float64(value)


def _fit_schedule(schedule: Callable[[Any], Any], dtype: Any, count: Any) -> Callable[[Any], Any]:
    """Cast the values of a schedule to at most ``dtype``; run it in the user's mode."""
    if not _is_in_32_bits(dtype):
        return lambda count: array_in(schedule(count), dtype)
    rate = array_in(schedule(count), dtype)
    return lambda _: rate


def _is_in_32_bits(dtype: Any) -> bool:
    """Check whether stock computes in ``dtype`` in another mode than the user's."""
    return is_x64() and bool(dtype == jnp.float32)


def _list_mask(mask: Any, tree: PyTree) -> list[Any]:
    """List the entry of a mask for each leaf of a tree; the mask may be a prefix, or a function."""
    made = mask(tree) if all(map(callable, leaves(mask))) and callable(mask) else mask
    structure: Any = jax.tree_util.tree_structure(made)
    below = map(leaves, structure.flatten_up_to(tree))
    return [entry for entry, flat in zip(leaves(made), below) for _ in flat]


def _find_count(name: str, state: Any) -> Any:
    """Return the count that a schedule is called with; in a chain, weight decay comes first."""
    if "count" in getattr(state, "_fields", ()):
        return state.count
    return leaves(state[0 if name == "weight_decay" else -1])[0]
