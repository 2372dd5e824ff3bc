"""Fit a restored state to the optimizer that goes on with it, stock or patched.

Stock rounds some constants when ``init`` puts them into the state, such as the first distance of
prodigy, and the hyperparameters of a run that goes on in wider params: to cast 1.0 to float32 does
not bring 0.999 back. So a number that is the rounded value of a new state comes from a new state.
All others are the user's, and are cast.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .dtypes import (
    HALVES,
    PyTree,
    dtype_of,
    dtypes_in,
    is_inexact,
    is_number,
    is_weak,
    kind_of,
    may_cast,
)
from .modes import no_debugging
from .wrong_arguments import refuse_traced, refuse_wrong

if TYPE_CHECKING:
    from collections.abc import Iterable

_State = TypeVar("_State")


class StateChange(NamedTuple):
    """What `migrate_state` did with a leaf that is not as in a new state.

    Attributes:
      where: key path of the leaf, such as ``state.hyperparams['b2']``.
      kind: ``replaced`` by the value of a new state, ``cast``, or ``kept`` although a new state has
        another value or dtype.
      message: what was done, and why.
    """

    where: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def migrate_state(tx: Any, params: PyTree, state: _State) -> tuple[_State, tuple[StateChange, ...]]:
    """Fit a restored state to the optimizer that goes on with it.

    Call it after you restore a checkpoint, whether stock or patched optax wrote it, and whether
    stock or patched optax goes on. A state that fits is returned as it is.

    - Each leaf is cast to the dtype that it has in ``tx.init(params)``, within its kind of number.
    - A scalar, or a hyperparameter of ``inject_hyperparams``, that was rounded when it was new, and
      is wider now, is replaced: in bfloat16 ``b2=0.999`` is 1, and the cast would keep the 1.
    - A value that you changed is kept: a hyperparameter that is not the rounded value of a new
      state. So is a leaf that the new dtype cannot hold.

    Args:
      tx: the optimizer, built as in your program.
      params: tree of arrays or ``jax.ShapeDtypeStruct``; only shapes and dtypes count.
      state: the restored state, in the structure of ``tx.init(params)``.

    Returns:
      The state to go on with, and a `StateChange` for each leaf that was not as in a new
      state: print them. What you changed has the kind ``kept``.

    Raises:
      ValueError: the state has another structure, or a leaf has another shape, than a new state.
      TypeError: ``tx`` or ``params`` is something else, or the state is traced.
    """
    refuse_wrong("migrate_state", tx, params)
    refuse_traced("migrate_state", state)
    new = _trace_init(tx, params)
    structure: Any = jax.tree_util.tree_structure(state)
    old = _list_leaves(state)
    if structure != new.structure:
        raise ValueError(_describe_difference([leaf.where for leaf in old], new.paths))
    halves = _halves_by_group(old)
    with no_debugging():  # A NaN of the state is no error here.
        migrated = [
            _migrate(leaf, like, value, (*dtypes_in(params), *halves.get(leaf.group, ())))
            for leaf, like, value in zip(old, new.shapes, new.values)
        ]
    changes = tuple(change for _, change in migrated if change)
    return structure.unflatten(result for result, _ in migrated), changes


class _Leaf(NamedTuple):
    """A leaf of a state.

    Attributes:
      where: its key path.
      group: the key path of the node that holds it.
      value: the leaf.
      hyperparam: whether it is a hyperparameter that no schedule sets.
    """

    where: str
    group: str
    value: Any
    hyperparam: bool = False

    @property
    def may_be_constant(self) -> bool:
        """Whether stock may have rounded it when it was new, and left it so."""
        number = is_number(self.value) and kind_of(dtype_of(self.value)) >= 0
        return number and (self.hyperparam or np.ndim(self.value) == 0)


# Of ``inject_hyperparams``. From 0.1.5 on, those that a schedule sets have a state.
_HYPERPARAM = re.compile(r"(.*\.hyperparams)(_states)?(\[.*?\])")


def _list_leaves(state: PyTree) -> list[_Leaf]:
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    paths = [f"state{jax.tree_util.keystr(path)}" for path, _ in flat]
    matches = list(map(_HYPERPARAM.match, paths))
    scheduled = {match.group(1, 3) for match in matches if match and match[2]}

    def described(where: str, match: Any, path: Any, value: Any) -> _Leaf:
        if match and not match[2]:
            return _Leaf(where, match[1], value, match.group(1, 3) not in scheduled)
        return _Leaf(where, jax.tree_util.keystr(path[:-1]), value)

    return [described(*row) for row in zip(paths, matches, *zip(*flat))]


class _NewState(NamedTuple):
    """A new state, leaf by leaf: the shapes of arrays, the values of those that may be constant."""

    structure: Any
    paths: list[str]
    shapes: list[Any]
    values: list[Any]


def _trace_init(tx: Any, params: PyTree) -> _NewState:
    """Trace ``init``, and compute those leaves alone that may be constants."""
    inputs = jax.tree_util.tree_leaves(params)
    structure: Any = jax.tree_util.tree_structure(params)
    traced: list[tuple[Any, list[str], list[Any]]] = []

    def init() -> list[Any]:
        state = tx.init(structure.unflatten(map(_zeros, inputs)))
        found = _list_leaves(state)
        # No tracer may leave the trace: users look for leaks.
        shapes = [
            jax.ShapeDtypeStruct(leaf.value.shape, leaf.value.dtype)
            if isinstance(leaf.value, jax.Array)
            else None
            for leaf in found
        ]
        traced.append((jax.tree_util.tree_structure(state), [leaf.where for leaf in found], shapes))
        return [
            leaf.value if shape is not None and leaf.may_be_constant else None
            for leaf, shape in zip(found, shapes)
        ]

    try:
        values = jax.jit(init)()
    except jax.errors.JAXTypeError:  # An init that cannot be traced.
        values = init()
    return _NewState(*traced[-1], values)


def _zeros(leaf: Any) -> Any:
    is_array = hasattr(leaf, "shape") and kind_of(dtype_of(leaf)) >= 0
    return jnp.zeros(leaf.shape, dtype_of(leaf)) if is_array else leaf


def _halves_by_group(old: list[_Leaf]) -> dict[str, list[Any]]:
    """Find the half precision that all constants of a node fit, so that stock may have rounded.

    The dtypes of the leaves do not tell: some libraries cast while they restore.
    """
    groups: dict[str, list[Any]] = {}
    for leaf in old:
        if leaf.may_be_constant and is_inexact(leaf.value):
            groups.setdefault(leaf.group, []).append(_array(leaf.value))
    return {
        group: [half for half in HALVES if all(_equal(x, _rounded(x, half)) for x in constants)]
        for group, constants in groups.items()
    }


def _migrate(
    leaf: _Leaf, like: Any, value: Any, dtypes: Iterable[Any]
) -> tuple[Any, StateChange | None]:
    """Return the leaf to go on with, and what was done.

    Args:
      leaf: of the restored state.
      like: the shape and the dtype of the same leaf of a new state; None if that is no array.
      value: of the same leaf, if that may be a constant.
      dtypes: those to which stock may have rounded a constant, besides its own.
    """
    if like is None or not is_number(leaf.value):
        return leaf.value, None
    was, now = dtype_of(leaf.value), like.dtype
    if np.shape(leaf.value) != like.shape:
        shapes = f"{list(np.shape(leaf.value))}, and in a new state {list(like.shape)}"
        raise ValueError(
            f"{leaf.where} has the shape {shapes}. Pass the params that belong to the state; of a "
            f"state that `jax.pmap` replicated, pass one replica."
        )
    if min(kind_of(was), kind_of(now)) < 0:  # Such as a typed random key.
        return leaf.value, None
    constant = leaf.may_be_constant and value is not None
    if constant and is_inexact(value) and not _equal(leaf.value, value):
        for dtype in (was, *dtypes):
            if _equal(leaf.value, _rounded(value, dtype)):
                right = _text(value)
                why = f"which is {right} in {dtype}"
                message = f"{right} in place of {_text(leaf.value)}, {why}"
                replaced = jnp.full_like(leaf.value, value, dtype=now)
                return replaced, StateChange(leaf.where, "replaced", message)
    result = _cast(leaf.value, now) if _fits(leaf.value, now) else leaf.value
    changed = constant and not _equal(result, value)
    if changed and (leaf.hyperparam or np.any(np.isnan(_array(result)))):
        message = f"{_text(leaf.value)} kept; a new state has {_text(value)}"
        return result, StateChange(leaf.where, "kept", message)
    if dtype_of(result) != now:
        message = f"{was} kept: {now}, as in a new state, cannot hold it"
        return result, StateChange(leaf.where, "kept", message)
    if was != now:
        return result, StateChange(leaf.where, "cast", f"cast from {was} to {now}")
    return result, None


def _fits(leaf: Any, dtype: Any) -> bool:
    """Check whether a cast stays within the kind of number, and overflows nowhere."""
    if not may_cast(dtype_of(leaf), dtype):
        return False
    if np.dtype(dtype).itemsize >= np.dtype(dtype_of(leaf)).itemsize:
        return True
    return not bool(jnp.any(jnp.isfinite(leaf) & ~jnp.isfinite(jnp.asarray(leaf, dtype))))


def _cast(leaf: Any, dtype: Any) -> Any:
    """Return an array of the dtype, on the devices of the leaf: NumPy arrays stay on the host."""
    if dtype_of(leaf) == dtype and not is_weak(leaf):
        return leaf
    return leaf.astype(dtype) if isinstance(leaf, np.ndarray) else jnp.asarray(leaf, dtype)


def _array(value: Any) -> Any:
    return np.asarray(value, dtype_of(value))


def _rounded(value: Any, dtype: Any) -> Any:
    with np.errstate(all="ignore"):
        return _array(value).astype(dtype)


def _equal(one: Any, other: Any) -> bool:
    first, second = (_array(value).astype(np.complex128) for value in (one, other))
    return np.array_equal(first, second, equal_nan=True)


def _text(value: Any) -> str:
    return f"{_array(value).item():.6g}" if np.ndim(value) == 0 else "an array"


def _describe_difference(old: list[str], new: list[str]) -> str:
    """Describe the first difference of the structures."""
    found = next((pair for pair in itertools.zip_longest(old, new) if pair[0] != pair[1]), None)
    differs = "other types of nodes"
    if found:
        differs = "{}, not {}".format(*(path or "no more leaves" for path in found))
    return (
        f"The state has another structure than tx.init(params): {differs}. Restore it "
        f"into that structure: `flax.serialization.from_bytes(tx.init(params), data)`, or in orbax "
        f"give `tx.init(params)` as the item."
    )
