"""Dtype arithmetic that the patches share, leaf by leaf.

Every cast here is the identity for a leaf that already has the dtype, and leaves no trace in the
compiled program. So a patched function stays the stock program wherever stock keeps the contract.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

PyTree = Any
tree_map = jax.tree_util.tree_map
leaves: Callable[[PyTree], list[Any]] = jax.tree_util.tree_leaves
is_none: Callable[[Any], bool] = functools.partial(operator.is_, None)
leaves_and_none: Callable[[PyTree], list[Any]] = functools.partial(
    jax.tree_util.tree_leaves, is_leaf=is_none
)


def dtype_of(leaf: Any) -> Any:
    """Return the dtype of an array, a ``ShapeDtypeStruct`` or a Python scalar.

    For NumPy arrays this is the dtype that JAX gives them: float32 for float64 in 32-bit mode. Any
    other leaf, such as an activation function in an Equinox model, has float0.
    """
    if not hasattr(leaf, "dtype"):
        return jnp.result_type(leaf) if is_number(leaf) else jax.dtypes.float0
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "iufc":
        return jax.dtypes.canonicalize_dtype(leaf.dtype)
    return leaf.dtype


def is_inexact(leaf: Any) -> bool:
    """Check whether a leaf is real floating point or complex."""
    return bool(jnp.issubdtype(dtype_of(leaf), jnp.inexact))


def is_real(leaf: Any) -> bool:
    """Check whether a leaf is floating point and not complex."""
    return kind_of(dtype_of(leaf)) == REAL


def is_array(value: Any) -> bool:
    """Check for an array or a NumPy scalar. ``np.float32`` itself has an attribute dtype too."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic))


def is_weak(leaf: Any) -> bool:
    """Check whether a leaf is weakly typed, like Python numbers, and takes the dtype of others."""
    # A typed random key is an array without the attribute.
    return bool(getattr(leaf, "weak_type", not hasattr(leaf, "dtype")))


def is_half(leaf: Any) -> bool:
    """Check whether a leaf is a float narrower than float32."""
    return is_half_dtype(dtype_of(leaf))


@functools.cache
def is_half_dtype(dtype: Any) -> bool:
    """Check whether a dtype is a float narrower than float32."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and jnp.dtype(dtype).itemsize < 4


def has_16_bits(leaf: Any) -> bool:
    """Check for bfloat16 and float16; JAX promotes float8 with nothing."""
    return dtype_of(leaf) in HALVES


HALVES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))


def cast(leaf: Any, dtype: Any) -> Any:
    """Return a strongly typed array of ``dtype``; the leaf itself if it is one already."""
    aval = getattr(leaf, "aval", None)
    if aval is not None and aval.dtype == dtype and not aval.weak_type:
        return leaf  # Most often, and for each leaf of each step.
    if dtype == jax.dtypes.float0:
        return leaf
    if not hasattr(leaf, "dtype"):
        return jnp.asarray(leaf, dtype)
    if leaf.dtype == dtype and not is_weak(leaf):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):  # ``init`` may be given no more than shapes.
        sharding = getattr(leaf, "sharding", None)  # In old versions of JAX it is missing, if None.
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)
    if kind_of(leaf.dtype) == COMPLEX > kind_of(dtype):
        leaf = jnp.real(leaf)  # A plain cast would warn on the way to the same values.
    if isinstance(leaf, jax.core.Tracer):
        return jax.lax.convert_element_type(leaf, dtype)
    return _convert(leaf, dtype) if isinstance(leaf, jax.Array) else jnp.asarray(leaf, dtype)


# In an eager step, to call what is compiled takes a fifth of the time of ``jnp.asarray``.
_convert = jax.jit(jax.lax.convert_element_type, static_argnums=1, inline=True)


@functools.partial(jax.jit, static_argnums=1)
def _convert_all(flat: list[Any], dtype: Any) -> list[Any]:
    return [jax.lax.convert_element_type(leaf, dtype) for leaf in flat]


def cast_all(flat: list[Any], dtype: Any) -> list[Any]:
    """Cast each leaf of a list. An eager step does so in few programs, not in one a leaf."""
    others = [a for a in flat if isinstance(a, jax.core.Tracer) or not isinstance(a, jax.Array)]
    # Of several devices, a program would commit all of its results to the one of any argument.
    if others or jax.local_device_count() > 1 or len({leaf.sharding for leaf in flat}) > 1:
        return [cast(leaf, dtype) for leaf in flat]
    most = 64  # Leaves in one program: a larger one compiles for longer than it saves.
    starts = range(0, len(flat), most)
    return [leaf for start in starts for leaf in _convert_all(flat[start : start + most], dtype)]


def cast_like(tree: PyTree, like: PyTree) -> PyTree:
    """Cast each leaf to the dtype of the same leaf of ``like``."""
    return tree_map(lambda leaf, other: cast(leaf, dtype_of(other)), tree, like)


def strip_weak_type(state: PyTree, *, numbers_too: bool = False) -> PyTree:
    """Return the same state without weak types.

    A weakly typed leaf of a state becomes strong in the first step, and jit traces again.

    Args:
      state: of any transformation.
      numbers_too: whether Python and NumPy numbers become arrays everywhere. Else only in optax's
        own classes: a user-defined transformation may count on the host.
    """
    if strong_dtypes(state) is not None:
        return state
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        own = numbers_too or type(state).__module__.partition(".")[0] == "optax"
        return type(state)(*(strip_weak_type(part, numbers_too=own) for part in state))
    if type(state) in (tuple, list):
        return type(state)(strip_weak_type(part, numbers_too=numbers_too) for part in state)

    def strong(leaf: Any) -> Any:
        return cast(leaf, dtype_of(leaf)) if numbers_too or is_jax_array(leaf) else leaf

    return tree_map(strong, state)


def safe_increment(count: Any) -> Any:
    """Increment a counter in its dtype; stay at the largest number instead of overflowing."""
    return count + (count < jnp.iinfo(count.dtype).max).astype(count.dtype)


def strong_dtypes(tree: PyTree) -> list[Any] | None:
    """List the dtypes of strongly typed arrays of JAX; return None if a leaf is anything else."""
    flat = leaves(tree)
    try:  # Without a call a leaf: this runs several times in each eager step.
        return None if any(map(_WEAK_TYPE, flat)) else list(map(_DTYPE, flat))
    except AttributeError:  # Python and NumPy numbers, functions, shapes.
        return None


def array_dtypes(tree: PyTree) -> list[Any] | None:
    """List the dtypes of arrays of JAX, weakly typed or not; None if a leaf is anything else."""
    try:
        return list(map(_DTYPE, leaves(tree)))
    except AttributeError:
        return None


def all_dtypes(tree: PyTree) -> list[Any]:
    """List the dtype of each leaf of a tree."""
    flat = leaves(tree)
    try:
        return list(map(_DTYPE, flat))
    except AttributeError:
        return list(map(dtype_of, flat))


def dtypes_in(tree: PyTree) -> set[Any]:
    """Return the dtypes of the leaves of a tree."""
    return set(all_dtypes(tree))


# By way of aval: a tracer takes ten times as long to find its own weak_type.
_DTYPE, _WEAK_TYPE = operator.attrgetter("aval.dtype"), operator.attrgetter("aval.weak_type")


def unflatten_like(tree: PyTree, flat: Iterable[Any]) -> PyTree:
    """Build a tree with the structure of ``tree`` from other leaves."""
    structure: Any = jax.tree_util.tree_structure(tree)
    return structure.unflatten(flat)


def numbers(tree: PyTree) -> list[Any]:
    """List the leaves that are arrays or numbers: a model may have functions among its leaves."""
    return [leaf for leaf in leaves(tree) if is_number(leaf)]


def same_structure(*trees: PyTree) -> bool:
    """Check whether all trees have their leaves in the same places."""
    structures: list[Any] = list(map(jax.tree_util.tree_structure, trees))
    return structures == structures[:1] * len(structures)  # One call, not one a tree.


def have_same_dtypes(new: PyTree, old: PyTree) -> bool:
    """Check that ``new`` has strongly typed arrays, of the dtypes of the arrays in ``old``."""
    dtypes = strong_dtypes(new)
    return dtypes is not None and dtypes == array_dtypes(old)


@functools.cache
def may_cast(now: Any, was: Any) -> bool:
    """Check whether a leaf may be cast back: within its kind of number, or to a higher kind (C1).

    A narrower float rounds, or overflows to inf. Integers would wrap around: they are narrowed from
    64 bits to 32, where 64-bit mode widened them, and no further.
    """
    kinds = kind_of(now), kind_of(was)
    if now == was or kinds[0] < kinds[1]:
        return True
    if kinds[0] > kinds[1]:
        return False
    if kinds[0] != _INTEGER:
        return True
    signed = [bool(jnp.issubdtype(dtype, jnp.signedinteger)) for dtype in (now, was)]
    return signed[0] == signed[1] and was.itemsize >= min(now.itemsize, 4)


_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
_INTEGER, REAL, COMPLEX = 1, 2, 3


@functools.cache
def kind_of(dtype: Any) -> int:
    """Order the kinds of number: bool, integer, real, complex; -1 for any other dtype."""
    found = (kind for kind, parent in enumerate(_KINDS) if jnp.issubdtype(dtype, parent))
    return next(found, -1)


def is_complex(leaf: Any) -> bool:
    """Check whether a leaf is complex."""
    return kind_of(dtype_of(leaf)) == COMPLEX


def is_jax_array(leaf: Any) -> bool:
    """Check whether a leaf is an array or tracer of JAX, or the shape of one."""
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))


def is_deleted(leaf: Any) -> bool:
    """Check for an array without data: what the user calls in an eager step may donate it."""
    is_traced = isinstance(leaf, jax.core.Tracer)
    return isinstance(leaf, jax.Array) and not is_traced and leaf.is_deleted()


def is_number(leaf: Any) -> bool:
    """Check whether JAX can compute with a leaf: a state that is never traced may hold text."""
    return hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex))
