"""Shrink the shapes of a problem, but not below what a transformation distinguishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from .dtypes import PyTree, dtype_of, is_number, leaves
from .jaxpr import equations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Shape = tuple[int, ...]

_SIZES = (4, 16, 64, 128, 256, 512)
"""The sizes to try for large dimensions, in this order. Adafactor factors from 128 on."""


def shrunk_shapes(tx: Any, params: PyTree, grads: PyTree) -> dict[Shape, Shape]:
    """Choose a smaller shape for each shape of the params and gradients.

    A dimension of at most 4 stays. Of the larger ones, equal ones stay equal, and a longer one
    stays longer. ``tx`` must do the same to the smaller ones: ``init`` makes a state of the same
    structure, with the same ranks and the same dimensions of size 1, and ``update`` runs the same
    operations. If it does not, the next size is tried, and at last the shapes stay.

    Args:
      tx: the transformation. If it needs extra arguments, only ``init`` counts.
      params: tree of arrays or ``jax.ShapeDtypeStruct``.
      grads: likewise.
    """
    shapes = {tuple(leaf.shape) for leaf in leaves((params, grads)) if _has_shape(leaf)}
    as_is = {shape: shape for shape in shapes}
    wanted = _outline(tx, params, grads, as_is)
    for size in _SIZES if wanted is not None else ():
        smaller = _smaller(shapes, size)
        if _outline(tx, params, grads, smaller) == wanted:
            return smaller
    return as_is


def _smaller(shapes: Iterable[Shape], size: int) -> dict[Shape, Shape]:
    shapes = list(shapes)
    large = sorted({n for shape in shapes for n in shape if n > size})
    dimension = {n: min(n, size + i) for i, n in enumerate(large)}
    return {shape: tuple(dimension.get(n, n) for n in shape) for shape in shapes}


def _outline(tx: Any, params: PyTree, grads: PyTree, shapes: Mapping[Shape, Shape]) -> Any:
    """Describe the state and the operations without sizes; None if ``init`` cannot be traced."""
    structure: Any = jax.tree_util.tree_structure((params, grads))
    flat = leaves((params, grads))
    arrays = [i for i, leaf in enumerate(flat) if _has_shape(leaf)]
    states: list[Any] = []

    def given(values: list[Any]) -> Any:
        filled = list(flat)
        for i, value in zip(arrays, values):
            filled[i] = value
        return structure.unflatten(filled)

    def init(values: list[Any]) -> list[Any]:
        state = tx.init(given(values)[0])
        states.append(jax.tree_util.tree_structure(state))
        return [leaf for leaf in leaves(state) if is_number(leaf)]

    def update(values: list[Any]) -> list[Any]:
        params, grads = given(values)
        return list(filter(is_number, leaves(tx.update(grads, tx.init(params), params))))

    inputs = [
        jax.ShapeDtypeStruct(shapes[tuple(leaf.shape)], dtype_of(leaf))
        for leaf in (flat[i] for i in arrays)
    ]
    try:
        state = jax.eval_shape(init, inputs)
    except Exception:  # Not traceable, or too small: ``muon`` may refuse a shape.
        return None
    try:
        jaxpr = jax.make_jaxpr(update)(inputs)
    except Exception:  # It needs extra arguments, or a constant has the shape of a param.
        operations = None
    else:
        operations = [equation.primitive.name for equation in equations(jaxpr.jaxpr)]
    return states[0], [tuple(n == 1 for n in leaf.shape) for leaf in state], operations


def _has_shape(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")
