"""zero_nans: in MultiSteps, one bad micro-batch costs one update and not the rest of the run.

Stock suppresses values by multiplying them by 0, in ``emit * update`` and in
``(1 - emit) * acc_grads``. But 0 * nan and 0 * inf are nan. So an accumulator that was nan once
stays nan, and ``zero_nans`` makes every later gradient zero, without a warning.

Here stock runs unchanged, and a nan where stock meant 0 becomes 0. Finite values keep their bits.
In 0.1.8 and 0.1.9 stock suppresses the state of the inner transformation in the same way, which
also breaks bool leaves such as the mask of ``zero_nans``: there the state is selected.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._contract.dtypes import PyTree, is_inexact, leaves, same_structure, tree_map
from .._engine.patch import Stock
from .branches import copy_of


def update(
    stock: Stock,
    self: Any,
    /,
    updates: PyTree,
    state: Any,
    params: PyTree = None,
    **extra_args: Any,
) -> tuple[PyTree, Any]:
    """Replace the products of updates and accumulator, from 0.2.0 on."""
    new_updates, new_state = stock(self, updates, state, params, **extra_args)
    emitted = new_state.mini_step == 0
    acc_grads = _without_nan(new_state.acc_grads, emitted)
    return _without_nan(new_updates, ~emitted), new_state._replace(acc_grads=acc_grads)


def _without_nan(tree: PyTree, meant_to_be_zero: Any) -> PyTree:
    return tree_map(lambda leaf: _zero_where_nan(leaf, meant_to_be_zero), tree)


@jax.jit  # Traced once for all leaves of one shape.
def _zero_where_nan(leaf: Any, meant_to_be_zero: Any) -> Any:
    zeroed = lax.select(meant_to_be_zero, lax.full_like(leaf, 0), leaf)
    return lax.select(lax.ne(leaf, leaf), zeroed, leaf)  # isnan, also for integers.


def update_selecting_state(
    stock: Stock,
    self: Any,
    /,
    updates: PyTree,
    state: Any,
    params: PyTree = None,
    **extra_args: Any,
) -> tuple[PyTree, Any]:
    """Do as :func:`update` on 0.1.8 and 0.1.9, and select the inner state."""
    import optax

    inner = self._opt
    structure: Any = jax.tree_util.tree_structure(state.inner_opt_state)

    # Stock gets a list of leaves: a user-defined node need not accept a _Selected.
    def inner_update(
        acc_grads: PyTree, inner_leaves: list[Any], params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        inner_state = structure.unflatten(inner_leaves)
        inner_updates, new_state = inner.update(acc_grads, inner_state, params, **extra_args)
        if not same_structure(new_state, inner_state):
            return inner_updates, new_state  # Stock raises.
        return inner_updates, list(map(_Selected, leaves(new_state), inner_leaves))

    patched_copy = copy_of(self)
    patched_copy._opt = optax.GradientTransformation(inner.init, inner_update)
    on_lists = state._replace(inner_opt_state=leaves(state.inner_opt_state))
    new_updates, new_state = update(stock, patched_copy, updates, on_lists, params, **extra_args)
    vars(patched_copy).clear()  # As in multi_steps: a cache of jax keeps it.
    inner_state = structure.unflatten(new_state.inner_opt_state)
    return new_updates, new_state._replace(inner_opt_state=inner_state)


class _Selected:
    """Select a leaf of the inner state where stock's weighted sum is not a selection.

    Stock writes ``(1 - emit) * old + emit * new``. For finite numbers this sum is a selection, with
    bits that depend on how the sum is compiled, so it is kept. For nan, inf and bool it is not.
    """

    def __init__(self, new: Any, old: Any) -> None:
        self._new, self._old = new, old

    def __rmul__(self, emit: Any) -> _Selected:
        self._emit = emit
        return self

    def __radd__(self, accumulated: Any) -> Any:
        selected = jnp.where(self._emit, self._new, self._old)
        if not is_inexact(selected):
            return selected
        weighted = accumulated + self._emit * self._new
        return jnp.where(jnp.isfinite(weighted), weighted, selected)
