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
from ..._errors import warn_or_raise
from ..._settings import SETTINGS
from .._support.rebuild import call_of, rebuild
from .._support.representation import Representation, is_complex

_TREES = ("params", "updates", "diff_params_memory", "diff_updates_memory")
"""Fields of the state that are trees like the params; the memories have one axis more."""


def _scale_by_lbfgs(stock: Stock, *args: Any, split: bool, **kwargs: Any) -> Any:
    """Compute directions in one dtype; 64-bit mode alone does not make the weights float64."""
    tx = stock(*args, **kwargs)

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

    return rebuild(tx, call_of(stock, args, kwargs), update_fn, init_fn, also_in_float32=True)


scale_by_lbfgs = functools.partial(_scale_by_lbfgs, split=False)
# Up to 0.2.4, with complex leaves as pairs of real ones.
scale_by_lbfgs_split = functools.partial(_scale_by_lbfgs, split=True)


def _as_kept(grad: Any, kept: Any) -> Any:
    """Round a gradient as the state does: else rounding would count as a change of it."""
    return grad if is_complex(kept) > is_complex(grad) else cast_leaf_back(grad, kept)


def lbfgs(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Build L-BFGS with a default line search that is patched too.

    Stock built its default when optax was imported, from stock functions. Its arguments are in the
    cells of its closures, so a patched search is built from the same arguments.
    """
    import optax

    signature = inspect.signature(stock)
    default = getattr(signature.parameters.get("linesearch"), "default", None)
    given = "linesearch" in signature.bind(*args, **kwargs).arguments
    # Our own default is there if the optax module was reloaded.
    if given or (isinstance(default, tuple) and not _is_stock(default)):
        return stock(*args, **kwargs)
    arguments = arguments_of(default)
    if arguments is not None:
        return stock(*args, **kwargs, linesearch=optax.scale_by_zoom_linesearch(**arguments))
    warn_or_raise(
        "The default line search of this lbfgs is not patched: the patch does not know how this "
        "optax built it. Pass linesearch=optax.scale_by_zoom_linesearch(...).",
        strict=SETTINGS.strict,
    )
    return stock(*args, **kwargs)


def _is_stock(linesearch: Any) -> bool:
    function = getattr(linesearch, "update", None)
    return str(getattr(function, "__globals__", {}).get("__name__")).startswith("optax.")


def arguments_of(linesearch: Any) -> dict[str, Any] | None:
    """Find the arguments that stock's ``scale_by_zoom_linesearch`` was called with.

    Return None if the closures of this release do not have them.
    """
    import optax

    found: dict[str, Any] = {}
    functions: list[Any] = [getattr(linesearch, "update", None)]
    while functions:
        closure = inspect.getclosurevars(functions.pop()).nonlocals
        new = {name: value for name, value in closure.items() if name not in found}
        found.update(new)
        functions += filter(inspect.isfunction, new.values())
    renamed = {"max_learning_rate": "max_stepsize", "stepsize_precision": "interval_threshold"}
    names = inspect.signature(optax.scale_by_zoom_linesearch).parameters
    cells = {name: renamed.get(name, name) for name in names}
    known = found.keys() >= set(cells.values())
    return {name: found[cell] for name, cell in cells.items()} if known else None
