"""Find out which dtypes a function gives its results, and compute nothing."""

from __future__ import annotations

import functools
from typing import Any, Callable

import jax
import numpy as np

from .._tally import paused
from .dtypes import is_array, leaves
from .promotion import standard_promotion

_PLAIN = (bool, int, float, complex, str, type, np.dtype)


def trace(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any] | None:
    """List the leaves of the result of a call, as ``jax.ShapeDtypeStruct``; None if it raises.

    Args:
      function: is given arrays in the place of shapes. Nothing that it does counts.
      *args: trees of arrays, shapes and other values.
      **kwargs: the same.
    """
    return _trace(_call_on.__wrapped__, function, args, kwargs)


def trace_once(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any] | None:
    """Do the same for a function that stays: a function of stock, which holds no arrays.

    What was traced is kept, by structures, dtypes and modes, until ``jax.clear_caches()``. But not
    if an argument is an object that may hold arrays.
    """
    return _trace(_call_on, function, args, kwargs)


def trace_state(update: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any] | None:
    """List the leaves of the state after a step, as :func:`trace` does."""
    return trace(lambda *args, **kwargs: update(*args, **kwargs)[1], *args, **kwargs)


def _trace(
    prepare: Callable[..., Any], function: Callable[..., Any], args: Any, kwargs: Any
) -> list[Any] | None:
    flat, structure = jax.tree_util.tree_flatten((args, kwargs))
    varies = [is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct) for leaf in flat]
    arrays = [leaf for leaf, is_varied in zip(flat, varies) if is_varied]
    rest = tuple(None if v else (type(leaf), leaf) for leaf, v in zip(flat, varies))
    if not all(leaf is None or isinstance(leaf[1], _PLAIN) for leaf in rest):
        prepare = _call_on.__wrapped__
    with paused(), standard_promotion():
        try:
            found: list[Any] = jax.eval_shape(prepare(function, structure, rest), arrays)
        except Exception:  # The user's call will raise too, if this is an error there.
            return None
    return found


@functools.lru_cache(maxsize=256)
def _call_on(
    function: Callable[..., Any], structure: Any, rest: tuple[Any, ...]
) -> Callable[[list[Any]], list[Any]]:
    """Return the call as a function of its arrays. It returns leaves: nodes may take no shapes."""

    def call(arrays: list[Any]) -> list[Any]:
        remaining = iter(arrays)
        flat = [next(remaining) if leaf is None else leaf[1] for leaf in rest]
        args, kwargs = structure.unflatten(flat)
        return leaves(function(*args, **kwargs))

    # With jax 0.4.13, ``jax.clear_caches()`` crashes on some functions that were jitted here.
    return jax.jit(call) if jax.__version_info__ > (0, 4, 13) else call
