"""Cap the dtype of an update at the widest dtype of its inputs (C2); else keep stock's dtype."""

from __future__ import annotations

import functools
from typing import Any, Union

import jax
import jax.numpy as jnp
import numpy as np

from .dtypes import (
    COMPLEX,
    REAL,
    PyTree,
    all_dtypes,
    array_dtypes,
    cast_all,
    dtype_of,
    have_same_dtypes,
    is_number,
    kind_of,
    leaves,
    leaves_and_none,
    numbers,
    unflatten_like,
)
from .rounding import round_leaf
from .widths import widest_real

Requested = Union[tuple[Any, ...], list[tuple[Any, ...]]]
"""Dtypes that the user asked for, for all updates, or a tuple for each."""

_FLOAT32 = np.dtype(np.float32)


@functools.cache
def limit(stock: Any, *inputs: Any, requested: tuple[Any, ...] = ()) -> Any:
    """Return the widest dtype that an update may have, within its kind.

    The limit is the promoted real dtype of the inputs, float32 if all of them are integers, or a
    wider one that the user asked for. A dtype of stock within the limit stands. A wider one becomes
    the limit, within its kind: a complex update stays complex, and an integer one stays as it is.

    Args:
      stock: the dtype that stock gives the update.
      *inputs: the dtypes of the gradient and of its param.
      requested: the dtypes that the user asked for.
    """
    if kind_of(stock) < REAL:
        return stock
    widest = widest_real(widest_real(*inputs), *requested)
    if jnp.finfo(stock).bits <= jnp.finfo(widest).bits:
        return stock
    return jnp.promote_types(widest, jnp.complex64) if kind_of(stock) == COMPLEX else widest


def cast_updates(
    updates: PyTree,
    grads: PyTree,
    params: PyTree = None,
    state: PyTree = None,
    requested: Requested = (),
) -> PyTree:
    """Cast each update that is wider than its limit to the limit; strip weak types.

    Args:
      updates: stock's, in any pytree node.
      grads: the gradients that they were computed from.
      params: the params, if the user passed them in. Else arrays of the state in the shapes of the
        gradients stand in for them; without such arrays, params count as float32.
      state: the state before the step, where the params or the arguments of the transformation are
        not known. An update is then also as wide as a leaf of the state that is kept for its param:
        with ``mu_dtype=float32`` the first moment says so. A state of ``master_weights`` inside
        asks for the dtype of its copy.
      requested: dtypes that the user asked for by arguments, for all updates or for each.

    Returns:
      The updates. A tree with neither the structure of the gradients nor that of the params comes
      back as it is.
    """
    dtypes = None
    if not have_same_dtypes(updates, grads):
        dtypes = limits(updates, grads, params, state, requested)
    if dtypes is None:
        return updates
    if set(dtypes) == {_FLOAT32} and array_dtypes(updates) == dtypes:  # Weakly typed, some of them.
        return unflatten_like(updates, cast_all(leaves(updates), _FLOAT32))
    pairs = zip(leaves(updates), dtypes)
    rounded = [round_leaf(x, dtype) if isinstance(x, jax.Array) else x for x, dtype in pairs]
    return unflatten_like(updates, rounded)


def limits(
    updates: PyTree, grads: PyTree, params: PyTree, state: PyTree, requested: Requested = ()
) -> list[Any] | None:
    """List the dtypes that :func:`cast_updates` gives, or None for a tree that it leaves alone."""
    of_grads, like_grads = _dtypes_for(updates, grads)
    of_params, like_params = _dtypes_for(updates, params)
    if not (like_grads or like_params):
        return None
    given = all_dtypes(updates)
    inputs: list[tuple[Any, ...]] = list(zip(of_grads, of_params))
    if len(leaves(grads)) != len(given):  # Pairs, as of lookahead: any gradient may be behind one.
        inputs = _inputs_of_pairs(inputs, all_dtypes(grads))
    asked = requested if isinstance(requested, list) else [requested] * len(given)
    kept: list[tuple[Any, ...]] = []
    if state is not None:
        # Not at the top: few programs use it.
        from .master_weights import requested_by

        kept = [tuple(map(dtype_of, row)) for row in zip(*subtrees_like(state, updates))]
        copies = requested_by(state)
        asked = [(*more, *row, *copies) for more, row in zip(asked, kept or [()] * len(given))]
    if params is None or _UNKNOWN in of_params:  # Params may be float32.
        stand_ins = kept or [(_FLOAT32,)] * len(given)
        inputs = [(*row, *more) for row, more in zip(inputs, stand_ins)]
    rows = zip(given, inputs, asked)
    return [limit(dtype, *row, requested=more) for dtype, row, more in rows]


def _inputs_of_pairs(inputs: list[tuple[Any, ...]], grads: list[Any]) -> list[tuple[Any, ...]]:
    """Add gradients to params: where one has two updates, both are in the order of gradients."""
    if grads and len(inputs) == 2 * len(grads):
        return [(*row, grad) for row, grad in zip(inputs, 2 * grads)]
    return [(*row, *grads) for row in inputs]


_UNKNOWN = np.dtype("V3")  # Of no array of JAX.


def _dtypes_for(updates: PyTree, tree: PyTree) -> tuple[list[Any], bool]:
    """List the dtype of a tree for each update, and say whether their structures are the same.

    It is ``_UNKNOWN`` for each update if the shapes differ. A gradient, and its update, may be None
    for a leaf that is frozen or no array.
    """
    structure: Any = jax.tree_util.tree_structure(tree)
    if structure == jax.tree_util.tree_structure(updates):
        return all_dtypes(tree), True
    like, flat = leaves(updates), leaves(tree)
    if len(flat) != len(like):
        pairs = zip(leaves_and_none(updates), leaves_and_none(tree))
        flat = [leaf for update, leaf in pairs if update is not None]
    same = len(flat) == len(like) and all(np.shape(a) == np.shape(b) for a, b in zip(flat, like))
    if not same:
        return [_UNKNOWN] * len(like), False
    return [_UNKNOWN if leaf is None else dtype_of(leaf) for leaf in flat], False


def subtrees_like(state: PyTree, tree: PyTree) -> list[list[Any]]:
    """Find the subtrees of a state that have a leaf for each leaf of a tree, in its shape."""
    structure: Any = jax.tree_util.tree_structure(tree)
    shapes = [np.shape(leaf) for leaf in leaves(tree)]
    found: list[list[Any]] = []

    def collect(node: Any) -> bool:
        flat = leaves(node)
        if len(flat) != len(shapes) or jax.tree_util.tree_structure(node) != structure:
            return False
        if flat and [np.shape(leaf) for leaf in flat] == shapes:
            found.append(flat)
        return True

    jax.tree_util.tree_leaves(state, is_leaf=collect)
    return found


def same_dtypes(grads: PyTree, params: PyTree) -> bool:
    """Check that each gradient has the dtype of its param, if there are params."""
    dtypes = array_dtypes(grads)
    if dtypes is not None and dtypes == array_dtypes(params):
        return True
    flat, like = numbers(grads), numbers(params)
    if len(flat) != len(like):  # A gradient may be None where there is a param.
        rows = zip(leaves_and_none(grads), leaves_and_none(params))
        pairs = [row for row in rows if all(map(is_number, row))]
    else:
        pairs = list(zip(flat, like))
    return all(dtype_of(grad) == dtype_of(param) for grad, param in pairs)
