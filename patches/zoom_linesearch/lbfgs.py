"""Compute directions of L-BFGS in one dtype, with a default line search that is patched too."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from ..._contract.dtypes import PyTree, cast_back, leaves
from ..._contract.kinds import promote_initial_state
from ..._contract.promotion import standard_promotion
from ..._contract.updates import cast_updates
from ..._contract.widths import compute_dtype, statistics_dtype
from ..._engine.patch import Stock
from ..._errors import warn_or_raise
from ..._settings import SETTINGS
from ..._tally import count, paused
from .._support.rebuild import Call, call_of, rebuild
from .._support.representation import Representation


def scale_by_lbfgs_split(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """On 0.2.3 and 0.2.4, replace complex leaves by pairs of real ones."""
    return _direction(stock(*args, **kwargs), call_of(stock, args, kwargs), split=True)


def scale_by_lbfgs(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Compute directions in one dtype, from 0.2.5 on."""
    return _direction(stock(*args, **kwargs), call_of(stock, args, kwargs), split=False)


def _direction(tx: Any, call: Call, *, split: bool) -> Any:
    """Compute directions in one dtype; 64-bit mode alone does not make the weights float64."""
    trees = ("params", "updates", "diff_params_memory", "diff_updates_memory")

    def init_fn(params: PyTree) -> Any:
        return promote_initial_state(update_fn, zeros(params), params)

    def zeros(params: PyTree) -> Any:
        """Start stock's state without float64 weights in 64-bit mode."""
        dtype = statistics_dtype(params)
        with paused():
            weights = jax.eval_shape(lambda p: tx.init(p).weights_memory, params)
        if weights.dtype == dtype:
            return tx.init(params)
        structures: list[Any] = []

        def start(params: PyTree) -> list[Any]:
            state = tx.init(params)
            state = state._replace(weights_memory=state.weights_memory.astype(dtype))
            structures.append(jax.tree_util.tree_structure(state))
            return leaves(state)

        shapes = jax.eval_shape(start, params)
        return structures[0].unflatten(jnp.zeros(leaf.shape, leaf.dtype) for leaf in shapes)

    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        problem = Representation(compute_dtype((params, updates)), split)
        if params is None or problem.is_noop(params, updates, state.params):
            with standard_promotion():
                new_updates, new_state = tx.update(updates, state, params)
        else:
            # In the dtypes of the state: else rounding would count as a change of the gradient.
            kept = cast_back(updates, state.updates)
            computed = {name: problem.cast_to_compute(getattr(state, name)) for name in trees}
            with standard_promotion():
                new_updates, new_state = tx.update(
                    problem.cast_to_compute(kept),
                    state._replace(**computed),
                    problem.cast_to_compute(params),
                )
            new_updates = problem.cast_to_output(new_updates, updates)
            restored = {
                name: problem.cast_to_output(getattr(new_state, name), getattr(state, name))
                for name in trees
            }
            new_state = new_state._replace(**restored)
        return cast_updates(new_updates, updates, params), cast_back(new_state, state)

    return rebuild(tx, call, update_fn, init_fn, also_in_float32=True)


def lbfgs(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Build L-BFGS with a default line search that is patched too.

    Stock built its default when optax was imported, from stock functions. Its arguments are in the
    cells of its closures, so a patched search is built from the same arguments.
    """
    import optax

    signature = inspect.signature(stock)
    if "linesearch" in signature.bind(*args, **kwargs).arguments:
        return stock(*args, **kwargs)
    parameter = signature.parameters.get("linesearch")
    default = parameter.default if parameter else None
    if isinstance(default, tuple) and not _is_stock(default):  # The optax module was reloaded.
        return stock(*args, **kwargs)
    arguments = arguments_of(default)
    if arguments is not None:
        return stock(*args, **kwargs, linesearch=optax.scale_by_zoom_linesearch(**arguments))
    count("default line search not patched")
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
    functions = [getattr(linesearch, "update", None)]
    while functions:
        function: Any = functions.pop()
        code = getattr(function, "__code__", None)
        for name, cell in zip(code.co_freevars if code else (), function.__closure__ or ()):
            value = cell.cell_contents
            if name not in found:
                found[name] = value
                if inspect.isfunction(value):
                    functions.append(value)
    renamed = {"max_learning_rate": "max_stepsize", "stepsize_precision": "interval_threshold"}
    names = inspect.signature(optax.scale_by_zoom_linesearch).parameters
    cells = {name: renamed.get(name, name) for name in names}
    if not found.keys() >= set(cells.values()):
        return None
    return {name: found[cell] for name, cell in cells.items()}
