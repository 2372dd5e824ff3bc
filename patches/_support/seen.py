"""Remember the dtypes of the params that a transformation was built for.

A step without params has no other way to know them if a patch keeps the state in float32: bfloat16
gradients of bfloat16 params need bfloat16 updates, and those of float32 params float32 ones.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..._contract.dtypes import PyTree, dtype_of, kind_of, leaves
from .branches import promoted


class SeenParams:
    """The dtypes of the params that ``init`` was given, by the shapes of the leaves."""

    def __init__(self) -> None:
        self._seen: dict[tuple[tuple[int, ...], ...], list[set[Any]]] = {}

    def add(self, params: PyTree) -> None:
        """Remember params."""
        flat = leaves(params)
        dtypes = self._seen.setdefault(_shapes(flat), [set() for _ in flat])
        for known, leaf in zip(dtypes, flat):
            known.add(dtype_of(leaf))

    def like(self, grads: PyTree) -> list[Any]:
        """List abstract params for these gradients. Unknown ones have the dtypes of gradients."""
        flat = leaves(grads)
        seen = self._seen.get(_shapes(flat), [set[Any]()] * len(flat))
        return [
            jax.ShapeDtypeStruct(np.shape(grad), _wide_enough(dtype_of(grad), known))
            for grad, known in zip(flat, seen)
        ]


def _shapes(flat: list[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(np.shape, flat))


def _wide_enough(grad: Any, params: set[Any]) -> Any:
    # One transformation may train bfloat16 and float32 params: gradients tell the two apart.
    known = kind_of(grad) < 0 or not params or grad in params
    return grad if known else promoted(grad, *params)
