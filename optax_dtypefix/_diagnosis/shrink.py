"""Shrink the shapes of a problem, but not below what a transformation distinguishes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._contract.dtypes import PyTree, dtype_of, is_number, leaves
from .._contract.old_x64 import subjaxprs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Shape = tuple[int, ...]

_SIZES = (4, 16, 64, 128, 256, 512)
"""The sizes to try for large dimensions, in this order. Adafactor factors from 128 on."""


def shrunk_shapes(
    tx: Any, params: PyTree, grads: PyTree, *, least: int = _SIZES[0]
) -> dict[Shape, Shape]:
    """Choose a smaller shape for each shape of the params and gradients.

    A dimension of at most ``least`` stays. Of the larger ones, equal ones stay equal, and a longer
    one stays longer. ``tx`` must do the same to the smaller ones: ``init`` makes a state of the
    same structure, with the same ranks and the same dimensions of size 1, and ``update`` runs the
    same operations. If it does not, the next size is tried, and at last the shapes stay.

    Args:
      tx: the transformation. If it needs extra arguments, only ``init`` counts.
      params: tree of arrays or ``jax.ShapeDtypeStruct``.
      grads: likewise.
      least: the smallest size for a large dimension.
    """
    shapes = set(map(np.shape, leaves((params, grads))))
    as_is = {shape: shape for shape in shapes}
    wanted = _outline(tx, params, grads, as_is)
    for size in filter(least.__le__, _SIZES) if wanted else ():
        smaller = _smaller(shapes, size)
        if _outline(tx, params, grads, smaller) == wanted:
            return smaller
    return as_is


def _smaller(shapes: Iterable[Shape], size: int) -> dict[Shape, Shape]:
    shapes = list(shapes)
    large = sorted({n for shape in shapes for n in shape if n > size})
    first = size + any(size in shape for shape in shapes)
    dimension = {n: min(n, first + i) for i, n in enumerate(large)}
    return {shape: tuple(dimension.get(n, n) for n in shape) for shape in shapes}


def _outline(tx: Any, params: PyTree, grads: PyTree, shapes: Mapping[Shape, Shape]) -> list[Any]:
    """Describe the state and the operations without sizes; as far as they can be traced."""
    structure: Any = jax.tree_util.tree_structure((params, grads))
    inputs = [
        jax.ShapeDtypeStruct(shapes[np.shape(leaf)], dtype_of(leaf))
        for leaf in leaves((params, grads))
    ]
    outline: list[Any] = []

    def step(flat: list[Any]) -> list[Any]:
        params, grads = structure.unflatten(flat)
        state = tx.init(params)
        ones = [[n == 1 for n in np.shape(leaf)] for leaf in leaves(state) if is_number(leaf)]
        outline.extend((jax.tree_util.tree_structure(state), ones))
        return leaves(tx.update(grads, state, params))

    # A shape may be too small for ``init``, as for muon; ``update`` may need extra arguments.
    with contextlib.suppress(Exception):
        jaxpr = jax.make_jaxpr(step)(inputs)
        outline.append([*_operations(jaxpr.jaxpr)])
    return outline


def _operations(jaxpr: Any) -> Iterator[str]:
    """Yield the names of all operations, but those that bits for rounding come from."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        if equation.params.get("name") != "bits_of_corner":
            for inner in subjaxprs(equation):
                yield from _operations(inner)
