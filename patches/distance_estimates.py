"""distance_estimates: dadapt_adamw, dog, dowg, momo, momo_adam, mechanize keep float32 scalars.

These optimizers find their step size from sums over all steps (D-Adaptation,
https://arxiv.org/abs/2301.07733; DoG, https://arxiv.org/abs/2302.12022; DoWG,
https://arxiv.org/abs/2305.16284), averages (MoMo, https://arxiv.org/abs/2305.07583) or a bet
(Mechanic, https://arxiv.org/abs/2306.00144).

From 0.2.4 on stock keeps these scalars in the lowest dtype of the params. In bfloat16 a sum of
equal terms stops at 256 terms. In float16 a first distance of 1e-6 and an eps of 1e-8 are 0, and
0/0 is nan. An integer leaf makes the scalars integers. Up to 0.2.3 updates of bfloat16 params are
float32, and float64 in 64-bit mode. Stock squares complex numbers where their absolute values are
meant.

Here stock runs in 32-bit mode on a list of the leaves, all in float32, or in float64 if one leaf
is. A complex leaf becomes a pair of real leaves: the algorithms are made for real vectors.
``dadapt_adamw`` and ``prodigy`` divide by the sum of all gradients. As long as it is 0, the
estimate stays, and what is not finite in an update of ``prodigy`` is 0.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
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
from .._contract.kinds import promote_initial_state
from .._contract.promotion import standard_promotion
from .._contract.state import cast_back
from .._contract.updates import cast_updates
from .._contract.widths import compute_dtype, statistics_dtype
from .._contract.x64 import is_x64, without_x64
from .._engine.patch import Stock
from .door.arguments import array_in
from .door.closures import arguments_in, builder_of, with_arguments
from .door.keep_dtypes import KeepDtypes
from .door.representation import Representation, average_dtype
from .door.stock_dtypes import known_schedule, start_as_stock

# Fields of stock's states with a leaf for each param; all others are scalars.
_COPIES = frozenset({"init_params", "params0", "x0"})
_AVERAGES = frozenset({"exp_avg", "exp_avg_sq", "grad_sum"})
_TREES = _COPIES | _AVERAGES


class _Estimates(KeepDtypes):
    """Run stock on lists of leaves in one real dtype.

    The scalars of the state are float32, or float64 if all params are. Its trees have stock's
    dtypes. Averages of Adam in float16, where the square of a gradient is 0, and averages of
    integers are exceptions: they are float32. Updates are as wide as gradients and params.
    """

    def start(self, tx: Any, params: PyTree) -> Any:
        """Start a state in its final dtypes."""
        problem = Representation.of(compute_dtype(params), params)
        with standard_promotion():
            init = _with_arguments(tx.init, lambda _, value: _in(problem.dtype, value))
            state = without_x64(init, problem.to_list(params))
        scalars_in = statistics_dtype(params)
        squares = hasattr(state, "exp_avg_sq")
        averages_in = [average_dtype(p, squares=squares) for p in leaves(params)]
        given = dict(arguments_in(builder_of(tx.init), tx.init))

        def final(name: str, field: Any) -> Any:
            if name not in _TREES:
                number = given.get("estim_lr0", field) if name == "estim_lr" else field
                return cast(number, scalars_in if is_inexact(field) else dtype_of(field))
            tree = problem.to_tree(field, params)
            if name in _COPIES:  # Some releases start with zeros and copy in the first step.
                return cast_like(tree, params)
            return unflatten_like(params, map(cast, leaves(tree), averages_in))

        state = _map_fields(final, state)
        known = _with_arguments(tx.update, lambda _, v: known_schedule if callable(v) else v)
        return start_as_stock(tx._replace(update=known), state, params)

    def run(self, update: Any, grads: PyTree, state: Any, params: PyTree) -> tuple[PyTree, Any]:
        """Take a step of stock."""
        trees = [getattr(state, name) for name in _TREES.intersection(state._fields)]
        if params is None or not same_structure(grads, params, *trees):
            result: tuple[PyTree, Any] = update(grads, state, params)
            return result  # Stock raises, most often.
        new_updates, new_state = self._step(update, (grads, state, params), trees)
        return cast_updates(new_updates, grads, params), new_state

    def limits(self, *_: Any) -> None:
        """Leave the updates as :meth:`run` makes them."""

    def _step(
        self,
        update: Any,
        given: tuple[PyTree, Any, PyTree],
        trees: list[PyTree],
        base: Callable[[], PyTree] | None = None,
    ) -> tuple[PyTree, Any]:
        """Take a step of stock on lists of leaves in one real dtype.

        Args:
          update: a partial of stock's, with extra arguments.
          given: gradients, state and params.
          trees: of the state.
          base: for ``mechanize``, returns the updates of the base optimizer. One may be complex
            where gradient and param are real: stock only scales and adds them.

        Returns:
          Updates and new state in that dtype, complex where a tree is.
        """
        grads, state, params = given
        problem = Representation.of(compute_dtype(given), grads, params, *trees)
        if base is not None and _is_in_32_bits(problem.dtype):
            base()  # In the user's mode, before stock runs in 32-bit mode.

        def argument(name: str, value: Any) -> Any:
            if name == "base_optimizer" and base:
                return _returning(lambda: problem.to_list(base()))
            if name == "learning_rate" and callable(value):
                return _fit_schedule(value, problem.dtype, state.count)
            return _in(problem.dtype, value)

        def to_stock(name: str, field: Any) -> Any:
            if name in _TREES:
                return problem.to_list(field)
            return cast(field, problem.dtype) if is_inexact(field) else field

        def from_stock(name: str, field: Any) -> Any:
            if name not in _TREES:
                return field
            tree = problem.to_tree(field, getattr(state, name))
            return cast_like(tree, getattr(state, name)) if name in _COPIES else tree

        extra_args = {
            name: _cast_loss(value, problem.dtype) if name == "value" else value
            for name, value in update.keywords.items()
        }
        run = functools.partial(_with_arguments(update.func, argument), **extra_args)
        lists = problem.to_list(grads), _map_fields(to_stock, state), problem.to_list(params)
        with standard_promotion():
            new_updates, new_state = without_x64(run, *lists)
        if hasattr(new_state, "estim_lr"):
            new_updates, new_state = _guard(new_updates, new_state, lists[1])
        result = problem.to_tree(new_updates, grads), _map_fields(from_stock, new_state)
        if base is not None:
            _free(lists, keep=(given, result))
        return result


class _Mechanize(_Estimates):
    """Run stock around a base optimizer that sees its usual inputs."""

    def start(self, tx: Any, params: PyTree) -> Any:
        """Start the state of the base optimizer beside that of stock."""
        base = _base_of(tx.update)

        def without_base(name: str, value: Any) -> Any:
            return _returning(tuple) if name == "base_optimizer" else value

        init, update = (_with_arguments(function, without_base) for function in tx)
        state = super().start(tx._replace(init=init, update=update), params)
        base_state = strip_weak_type(promote_initial_state(base.update, base.init(params), params))
        return state._replace(base_optimizer_state=base_state)

    def run(self, update: Any, grads: PyTree, state: Any, params: PyTree) -> tuple[PyTree, Any]:
        """Take a step of the base optimizer, and one of stock with its updates."""
        if params is None or not same_structure(grads, params, state.x0):
            result: tuple[PyTree, Any] = update(grads, state, params)
            return result  # It raises.
        before = state.base_optimizer_state

        @functools.cache
        def base_step() -> tuple[PyTree, PyTree]:
            result: tuple[PyTree, PyTree] = _base_of(update.func).update(
                grads, before, params, **update.keywords
            )
            if not same_structure(result[0], params):
                update.func(grads, state, params)  # It raises.
            return result

        given = grads, state._replace(base_optimizer_state=()), params
        bare = functools.partial(update.func)
        new_updates, new_state = self._step(bare, given, [state.x0], lambda: base_step()[0])
        base_updates, after = base_step()
        # The state and the updates of the base optimizer show which dtypes the user asked for.
        bounded = cast_updates(base_updates, grads, params, before)
        new_state = new_state._replace(base_optimizer_state=cast_back(after, before))
        return cast_updates(new_updates, grads, params, bounded), new_state


# Stock builds trees of scalars, which a user-defined node need not accept, in float32 too.
replace = _Estimates(also_in_float32=True)
mechanize = _Mechanize(also_in_float32=True)


def tree_norm(stock: Stock, tree: PyTree) -> Any:
    """Replace the norm of ``mechanize`` in 0.1.7, which newer jax cannot run."""
    try:
        return stock(tree)
    except AttributeError:
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves(tree)))


def _base_of(update: Any) -> Any:
    return dict(arguments_in("mechanize", update))["base_optimizer"]


def _returning(updates: Callable[[], PyTree]) -> Any:
    """Build a transformation that gives these updates, and has no state."""
    import optax

    return optax.GradientTransformation(lambda _: (), lambda *_, **__: (updates(), ()))


def _guard(updates: PyTree, state: Any, before: Any) -> tuple[PyTree, Any]:
    """Keep the estimate where stock divides by a sum of gradients that is 0.

    What comes from a NaN or inf among the gradients stays: the numerator has it too.
    """
    is_unknown = jnp.isfinite(state.numerator_weighted) & ~jnp.isfinite(state.estim_lr)

    def finite(update: Any) -> Any:
        is_bad = is_unknown & ~jnp.isfinite(update)
        return jnp.where(is_bad, jnp.zeros_like(update), update)

    if hasattr(state, "params0"):  # Those of prodigy contain the estimate, of dadapt_adamw do not.
        updates = tree_map(finite, updates)
    estimate = jnp.where(is_unknown, before.estim_lr, state.estim_lr)
    return updates, state._replace(estim_lr=estimate)


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


def _map_fields(function: Callable[..., Any], state: Any) -> Any:
    return state._replace(**{name: function(name, x) for name, x in state._asdict().items()})


def _with_arguments(function: Any, change: Callable[[str, Any], Any]) -> Any:
    return with_arguments(builder_of(function), function, change)


def _in(dtype: Any, argument: Any) -> Any:
    """Cast the arrays of an argument to the dtype of the leaves."""
    if type(argument) in (bool, int, float):  # Most are.
        return argument
    return tree_map(lambda leaf: array_in(leaf, dtype), argument)


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
