"""Dtype arithmetic that the patches share. Leaf by leaf, and nothing at all where nothing is wrong.

Every cast here is the identity, and leaves no trace in the compiled program, for a leaf that
already has the dtype asked for: that is how a patched function stays the stock program wherever
stock optax keeps the contract.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from packaging.version import Version

from optax_dtypefix._log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Iterator

PyTree = Any
tree_map = jax.tree_util.tree_map

_64_BITS = ("float64", "complex128", "int64", "uint64")
_SAID: set[str] = set()
_SAID_LOCK = threading.Lock()


def dtype_of(leaf: Any) -> Any:
    """The dtype of an array, a ``ShapeDtypeStruct`` or a Python scalar.

    Of numpy's arrays the dtype that JAX gives them: float32 for float64 in 32-bit mode.
    """
    if not hasattr(leaf, "dtype"):
        return jnp.result_type(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "iufc":
        return jax.dtypes.canonicalize_dtype(leaf.dtype)
    return leaf.dtype


def is_inexact(leaf: Any) -> bool:
    """Whether a leaf is real floating point or complex."""
    return bool(jnp.issubdtype(dtype_of(leaf), jnp.inexact))


def is_weak(leaf: Any) -> bool:
    """Whether a leaf is weakly typed, as Python numbers are, and takes the dtype of the others."""
    # A typed random key is an array without the attribute.
    return bool(getattr(leaf, "weak_type", not hasattr(leaf, "dtype")))


def is_half(leaf: Any) -> bool:
    """Whether a leaf is a float narrower than float32."""
    if not is_number(leaf):
        return False
    dtype = dtype_of(leaf)
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize < 4


def cast(leaf: Any, dtype: Any) -> Any:
    """A strongly typed array of ``dtype``; the leaf itself if it is one already."""
    if not hasattr(leaf, "dtype"):
        return jnp.asarray(leaf, dtype)
    if isinstance(leaf, jax.ShapeDtypeStruct):  # ``init`` may be given no more than shapes.
        return jax.ShapeDtypeStruct(leaf.shape, dtype)
    if leaf.dtype == dtype and not is_weak(leaf):
        return leaf
    if _is_complex(leaf.dtype) and not _is_complex(dtype):
        leaf = jnp.real(leaf)  # A plain cast would warn on the way to the same values.
    return jnp.asarray(leaf, dtype)


def cast_like(tree: PyTree, like: PyTree) -> PyTree:
    """Each leaf in the dtype of the same leaf of ``like``."""
    return tree_map(lambda leaf, other: cast(leaf, dtype_of(other)), tree, like)


def strengthen(tree: PyTree) -> PyTree:
    """The same leaves without weak types, and Python scalars as arrays.

    A weakly typed leaf of a state turns strong in the first step, and jit traces again.
    """
    return tree_map(lambda leaf: cast(leaf, dtype_of(leaf)) if is_number(leaf) else leaf, tree)


def widen(tree: PyTree) -> PyTree:
    """Half-precision leaves in float32, for arithmetic; all others as they are."""
    return tree_map(lambda leaf: cast(leaf, jnp.float32) if is_half(leaf) else leaf, tree)


def working_dtype(tree: PyTree) -> Any:
    """What arithmetic over all leaves is done in: float32, or float64 if one leaf has it."""
    return jnp.result_type(jnp.float64 if any(_are_double(tree)) else jnp.float32)


def scalar_dtype(tree: PyTree) -> Any:
    """What scalar statistics about a tree are kept in: float32, or float64 if all is float64."""
    double = _are_double(tree)
    return jnp.result_type(jnp.float64 if double and all(double) else jnp.float32)


def _are_double(tree: PyTree) -> list[bool]:
    """Whether each inexact leaf has 64 bits; a complex one counts as its parts."""
    inexact = [dtype_of(leaf) for leaf in leaves(tree) if is_inexact(leaf)]
    return [jnp.finfo(dtype).dtype.itemsize > 4 for dtype in inexact]


def in_dtype(learning_rate: Any, dtype: Any) -> Any:
    """A number or schedule whose arrays come in ``dtype``; a Python number stays one."""
    if callable(learning_rate):
        return lambda count: in_dtype(learning_rate(count), dtype)
    return cast(learning_rate, dtype) if hasattr(learning_rate, "dtype") else learning_rate


def increment(count: Any) -> Any:
    """A counter plus one, in its dtype; it stays at the largest number rather than overflow."""
    return count + (count < jnp.iinfo(count.dtype).max).astype(count.dtype)


def leaves(tree: PyTree) -> list[Any]:
    """The leaves of a tree, in order."""
    found: list[Any] = jax.tree_util.tree_leaves(tree)
    return found


def have_one_structure(*trees: PyTree) -> bool:
    """Whether all trees have their leaves in the same places."""
    structures: list[Any] = list(map(jax.tree_util.tree_structure, trees))
    return all(structure == structures[0] for structure in structures)


def hold(new: PyTree, old: PyTree, whose: str = "") -> PyTree:
    """Cast a new state back to the dtypes of the old one, so that the state can go round a loop.

    A leaf stays within its kind of number: a float is never cast to an integer, nor a complex
    number to a real one. Such a leaf comes back as it is, and so does a tree of another structure:
    JAX reports both where they matter.

    Args:
      new: the state after a step.
      old: the state before that step.
      whose: the code that made the new state, if a user may have written that code. Each leaf that
        is cast back is then logged once, at level info, with its key path and both dtypes.
    """
    if not have_one_structure(new, old):
        return new
    if whose:
        _log_drift(new, old, whose)
    structure: Any = jax.tree_util.tree_structure(new)
    return structure.unflatten(map(hold_leaf, leaves(new), leaves(old)))


def hold_leaf(leaf: Any, before: Any) -> Any:
    """Cast a leaf back to the dtype that it had before, within its kind of number."""
    if not (is_number(leaf) and is_number(before)):
        return leaf
    was, now = dtype_of(before), dtype_of(leaf)
    return cast(leaf, was if may_cast(now, was) else now)


@functools.cache
def may_cast(now: Any, was: Any) -> bool:
    """Whether a cast between two dtypes loses no more than rounding (C1: within one kind).

    Integers do not round: they are narrowed from 64 bits to 32, where 64-bit mode widened them, and
    no further.
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
    """Order the kinds of number: bool, integer, real, complex; -1 for a dtype of no number."""
    found = (kind for kind, parent in enumerate(_KINDS) if jnp.issubdtype(dtype, parent))
    return next(found, -1)


def _log_drift(new: PyTree, old: PyTree, whose: str) -> None:
    with_paths, _ = jax.tree_util.tree_flatten_with_path(new)
    for (path, leaf), before in zip(with_paths, leaves(old)):
        if not (is_number(leaf) and is_number(before)):
            continue
        was, now = dtype_of(before), dtype_of(leaf)
        if was != now and may_cast(now, was):
            key = jax.tree_util.keystr(path) or "itself"
            _say_once(f"{whose}: leaf {key} changed from {was} to {now}; cast back to {was}")


def _say_once(message: str) -> None:
    with _SAID_LOCK:
        if message in _SAID:
            return
        _SAID.add(message)
    LOGGER.info(message)


def is_number(leaf: Any) -> bool:
    """Whether JAX can compute with it: a leaf of a state may be a word, if it is never traced."""
    return hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex))


def _is_complex(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


@contextlib.contextmanager
def x64(enabled: bool = True) -> Iterator[None]:
    """64-bit mode in this thread, or 32-bit mode."""
    if hasattr(jax, "enable_x64"):  # From jax 0.8 on; the one below is gone in 0.10.
        manager = jax.enable_x64(enabled)
    else:
        from jax.experimental import enable_x64  # type: ignore[attr-defined]

        manager = enable_x64(enabled)
    with manager:
        yield


def is_x64() -> bool:
    """Whether JAX is in 64-bit mode, in this thread."""
    return bool(jnp.result_type(float) == jnp.float64)


def without_x64(function: Callable[..., Any], *args: PyTree) -> PyTree:
    """``function(*args)`` in 32-bit mode: no float64 arises in it from Python scalars and counts.

    Stock code like ``1 - 0.9**count`` is float64 in 64-bit mode. Nothing changes in 32-bit mode, or
    if an argument has 64 bits. What the function closes over is narrowed to 32 bits.

    Args:
      function: takes and returns trees of arrays.
      *args: trees of arrays.

    Returns:
      What the function returns.
    """
    wide = any(str(getattr(leaf, "dtype", "")) in _64_BITS for leaf in leaves(args))
    if wide or not is_x64():
        return function(*args)
    if Version(jax.__version__) >= Version("0.7.2"):
        with x64(False):
            return function(*args)
    # Before, constants of a trace go into the compiled program as wide as the mode has them at the
    # end of the trace, and do not fit their operations. So they are made to fit.
    # On lists of leaves, as a node of the user's may take nothing but arrays.
    given: Any = jax.tree_util.tree_structure(args)
    results_in: list[Any] = []

    def flat_function(*flat: Any) -> list[Any]:
        result = function(*given.unflatten(flat))
        results_in.append(jax.tree_util.tree_structure(result))
        return leaves(result)

    with x64(False):
        closed = jax.make_jaxpr(flat_function)(*leaves(args))
    _fit_literals(closed.jaxpr)
    inputs = [*zip(closed.consts, closed.jaxpr.constvars), *zip(leaves(args), closed.jaxpr.invars)]
    fitted = [cast(value, variable.aval.dtype) for value, variable in inputs]
    consts, flat_args = fitted[: len(closed.consts)], fitted[len(closed.consts) :]
    results = jax.core.eval_jaxpr(closed.jaxpr, consts, *flat_args)
    return results_in[0].unflatten(results)


def _fit_literals(jaxpr: Any) -> None:
    """Gives each literal of a jaxpr, and of those nested in it, the dtype that it stands for."""
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    _fit_literals(inner)
    for variable in (*jaxpr.outvars, *(v for e in jaxpr.eqns for v in e.invars)):
        if hasattr(variable, "val"):
            variable.val = np.asarray(variable.val, variable.aval.dtype)[()]
