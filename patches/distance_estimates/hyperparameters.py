"""Convert the arguments of a distance estimator to those for a list of leaves in one dtype."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import PyTree, leaves, tree_map
from ..._contract.x64 import is_x64
from ..._tally import count, counting
from .._support.arguments import array_in


def hyperparameters_for(
    arguments: dict[str, Any], dtype: Any, tree: PyTree, state: Any = None
) -> dict[str, Any]:
    """Convert the arguments to those for a list of leaves in one dtype.

    Args:
      arguments: with arrays, masks and schedules as the user gave them.
      dtype: of arrays and, for a state, of the results of schedules.
      tree: what a mask is made for: params in ``init``, then gradients.
      state: before the step.
    """
    found: dict[str, Any] = tree_map(lambda leaf: array_in(leaf, dtype), dict(arguments))
    if arguments.get("mask") is not None:
        found["mask"] = _mask(arguments["mask"], tree)
    for name in ("learning_rate", "weight_decay"):
        if state is not None and callable(arguments.get(name)):
            found[name] = _schedule(arguments[name], dtype, _count(name, state))
    return found


def _schedule(schedule: Callable[[Any], Any], dtype: Any, count: Any) -> Callable[[Any], Any]:
    """Cast the values of a schedule to at most ``dtype``; run it in the user's mode."""
    if not in_32_bits(dtype):
        return counting(lambda count: array_in(schedule(count), dtype))
    rate = array_in(schedule(count), dtype)
    return lambda _: rate


def in_32_bits(dtype: Any) -> bool:
    """Check whether stock computes in ``dtype`` in another mode than the user's."""
    return is_x64() and bool(dtype == jnp.float32)


def _mask(mask: Any, tree: PyTree) -> list[Any]:
    """List the entry of a mask for each leaf of a tree; the mask may be a prefix, or a function."""
    made = mask(tree) if all(map(callable, leaves(mask))) and callable(mask) else mask
    structure: Any = jax.tree_util.tree_structure(made)
    below = map(leaves, structure.flatten_up_to(tree))
    return [entry for entry, flat in zip(leaves(made), below) for _ in flat]


def _count(name: str, state: Any) -> Any:
    """Return the count that a schedule is called with; in a chain, weight decay comes first."""
    if "count" in getattr(state, "_fields", ()):
        return state.count
    return leaves(state[0 if name == "weight_decay" else -1])[0]


def value_in(value: Any, dtype: Any) -> Any:
    """Cast a loss to ``dtype``. 0.2.5 and 0.2.6 need a NumPy method, which Python numbers lack."""
    import optax

    if hasattr(value, "dtype"):
        return array_in(value, dtype)
    if optax.__version__ in ("0.2.5", "0.2.6"):
        count("Python number accepted")
    return np.float64(value)
