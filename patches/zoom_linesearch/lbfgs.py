"""Compute directions of L-BFGS in one dtype, with a default line search that is patched too."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from ..._contract.dtypes import (
    PyTree,
    cast,
    dtype_of,
    leaves,
    same_structure,
    tree_map,
    unflatten_like,
)
from ..._contract.kinds import promote_initial_state
from ..._contract.promotion import standard_promotion
from ..._contract.state import cast_back, cast_leaf_back
from ..._contract.updates import cast_updates
from ..._contract.widths import compute_dtype, promoted
from ..._contract.x64 import without_x64
from ..._engine.patch import Stock
from ..._tally import Tally
from .._support.rebuild import Call, rebuild
from .._support.representation import Representation, is_complex

_TREES = ("params", "updates", "diff_params_memory", "diff_updates_memory")
"""Fields of the state that are trees like the params; the memories have one axis more."""


def scale_by_lbfgs(tx: Any, call: Call, tally: Tally, *, split: bool = False) -> Any:
    """Compute directions in one dtype; 64-bit mode alone does not make the weights float64."""

    def init_fn(params: PyTree) -> Any:
        # In 64-bit mode stock's weights are float64.
        state = without_x64(tx.init, leaves(params))
        fields = {name: unflatten_like(params, getattr(state, name)) for name in _TREES}
        fields["weights_memory"] = cast(state.weights_memory, compute_dtype(params))
        return promote_initial_state(update_fn, state._replace(**fields), params)

    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        trees = {name: getattr(state, name) for name in _TREES}
        if params is None or not same_structure(updates, params, *trees.values()):
            return tx.update(updates, state, params)  # type: ignore[no-any-return]  # It raises.
        dtype = compute_dtype((params, updates))
        problem = Representation.of(dtype, params, updates, *trees.values(), split=split)
        lists = {name: problem.to_list(tree) for name, tree in trees.items()}
        # With float64 gradients the weights are computed in float64, and kept in float32.
        weights = cast(state.weights_memory, promoted(dtype_of(state.weights_memory), dtype))
        rounded = tree_map(_as_kept, updates, state.updates)
        with standard_promotion():
            new_updates, new_state = tx.update(
                problem.to_list(rounded),
                state._replace(**lists, weights_memory=weights),
                problem.to_list(params),
            )
        new_trees = {name: problem.to_tree(getattr(new_state, name), params) for name in _TREES}
        new_updates = problem.to_tree(new_updates, updates)
        new_state = cast_back(new_state._replace(**new_trees), state)
        return cast_updates(new_updates, updates, params), new_state

    return rebuild(tx, call, update_fn, init_fn, also_in_float32=True, tally=tally)


# Up to 0.2.4, with complex leaves as pairs of real ones.
scale_by_lbfgs_split = functools.partial(scale_by_lbfgs, split=True)


def _as_kept(grad: Any, kept: Any) -> Any:
    """Round a gradient as the state does: else rounding would count as a change of it."""
    return grad if is_complex(kept) > is_complex(grad) else cast_leaf_back(grad, kept)


def lbfgs(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Build L-BFGS with a default line search that is lifted too.

    Stock built its default when optax was imported, perhaps before its classes were patched.
    """
    signature = inspect.signature(stock)
    if "linesearch" not in signature.bind(*args, **kwargs).arguments:
        default = signature.parameters["linesearch"].default
        kwargs["linesearch"] = type(default)(*default)
    return stock(*args, **kwargs)
