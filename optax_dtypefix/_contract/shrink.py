"""Shrink the shapes of a problem, but not below what a transformation distinguishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import jax

from .dtypes import PyTree, is_number, leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Shape = tuple[int, ...]

_SIZES = (4, 16, 64, 128, 256, 512)
"""The sizes to try for large dimensions, in this order. Adafactor factors from 128 on."""


def shrunk_shapes(init: Callable[[PyTree], PyTree], *trees: PyTree) -> dict[Shape, Shape]:
    """Choose a smaller shape for each shape of some trees.

    A dimension of at most 4 stays. Of the larger ones, equal ones stay equal, and a longer one
    stays longer. The state that ``init`` makes must be alike: the same structure, and for each leaf
    the same rank and the same dimensions of size 1. If it is not, the next size is tried, and at
    last the shapes stay.

    Args:
      init: of the transformation.
      *trees: trees of arrays or ``jax.ShapeDtypeStruct``; the first one is the params.
    """
    shapes = {tuple(leaf.shape) for tree in trees for leaf in leaves(tree) if _has_shape(leaf)}
    as_is = {shape: shape for shape in shapes}
    wanted = _outline(init, trees[0], as_is)
    for size in _SIZES if wanted is not None else ():
        smaller = _smaller(shapes, size)
        if _outline(init, trees[0], smaller) == wanted:
            return smaller
    return as_is


def _smaller(shapes: Iterable[Shape], size: int) -> dict[Shape, Shape]:
    shapes = list(shapes)
    large = sorted({n for shape in shapes for n in shape if n > size})
    dimension = {n: min(n, size + i) for i, n in enumerate(large)}
    return {shape: tuple(dimension.get(n, n) for n in shape) for shape in shapes}


def _outline(
    init: Callable[[PyTree], PyTree], params: PyTree, shapes: Mapping[Shape, Shape]
) -> Any:
    """Describe the state without its sizes; None if ``init`` cannot be traced."""
    structures: list[Any] = []
    structure: Any = jax.tree_util.tree_structure(params)
    flat = leaves(params)
    arrays = [i for i, leaf in enumerate(flat) if is_number(leaf)]

    def traced(numbers: list[Any]) -> list[Any]:
        filled = list(flat)
        for i, number in zip(arrays, numbers):
            filled[i] = number
        state = init(structure.unflatten(filled))
        structures.append(jax.tree_util.tree_structure(state))
        return [leaf for leaf in leaves(state) if is_number(leaf)]

    def shape(leaf: Any) -> Any:
        if not _has_shape(leaf):
            return leaf
        return jax.ShapeDtypeStruct(shapes[tuple(leaf.shape)], leaf.dtype)

    try:
        state = jax.eval_shape(traced, [shape(flat[i]) for i in arrays])
    except Exception:  # Not traceable, or too small: ``muon`` may refuse a shape.
        return None
    return structures[0], [tuple(n == 1 for n in leaf.shape) for leaf in state]


def _has_shape(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")
