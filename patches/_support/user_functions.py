"""Trace stock with what the user's functions return, and do not call them again."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp

from ..._contract.dtypes import is_weak, tree_map
from ..._tally import counting


class Recorded:
    """What functions of the user return to stock, to be returned again while stock is traced.

    The functions see the user's own leaves: muon's may choose by dtype.
    """

    def __init__(self, users_leaves: dict[int, Any]) -> None:
        """Take the user's leaves, by the ids of those that stock is given."""
        self._leaves, self._results = users_leaves, list[Any]()

    def note(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, which notes what it returns."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = tree_map(lambda leaf: self._leaves.get(id(leaf), leaf), (args, kwargs))
            self._results.append(function(*args, **kwargs))
            return self._results[-1]

        return counting(noted)

    def repeat(self, _: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that returns numbers of the same dtypes, in the order of the calls."""
        return lambda *_, **__: tree_map(_number_like, self._results.pop(0))


def _number_like(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    # The leaf itself may be a tracer that is out of use.
    return leaf.dtype.type().item() if is_weak(leaf) else jnp.zeros(leaf.shape, leaf.dtype)
