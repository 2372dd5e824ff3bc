"""Choose the dtype that is wide enough: for arithmetic, for statistics, for an update."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from .dtypes import REAL, PyTree, dtypes_in, kind_of
from .promotion import standard_promotion

_FLOAT32 = jnp.dtype(jnp.float32)


@functools.cache
def widest_real(*dtypes: Any) -> Any:
    """Promote the real dtypes; complex ones count as their parts, integers not. Else float32."""
    found = set(map(_real_part, dtypes)) - {None}
    if not found:
        return _FLOAT32
    size = max(dtype.itemsize for dtype in found)
    widest = [dtype for dtype in found if dtype.itemsize == size]
    # bfloat16 and float16 have one size, and float32 is the least that has the numbers of both.
    # float8 has no implicit promotion.
    return widest[0] if len(widest) == 1 or size == 1 else promoted(*widest)


@functools.cache
def _real_part(dtype: Any) -> Any:
    return jnp.finfo(dtype).dtype if kind_of(dtype) >= REAL else None


def real_dtype(tree: PyTree) -> Any:
    """Choose the widest real dtype among the leaves of a tree."""
    return widest_real(*dtypes_in(tree))


def compute_dtype(tree: PyTree) -> Any:
    """Choose the dtype of arithmetic over all leaves: float32, or float64 if a leaf has it."""
    return widest_real(_FLOAT32, *dtypes_in(tree))


def statistics_dtype(tree: PyTree) -> Any:
    """Choose the dtype of scalar statistics: float32, or float64 if all leaves are float64."""
    found = set(map(_real_part, dtypes_in(tree))) - {None}
    return jnp.dtype(jnp.float64) if found == {jnp.dtype(jnp.float64)} else _FLOAT32


def float_dtype(dtype: Any) -> Any:
    """Choose float32 in place of an integer dtype: a mean of integers is a float."""
    return _FLOAT32 if 0 <= kind_of(dtype) < REAL else dtype


def promoted(*dtypes: Any) -> Any:
    """Promote dtypes, even in the user's strict mode."""
    first = dtypes[0]
    if dtypes.count(first) == len(dtypes) and getattr(first, "itemsize", 8) < 8:
        return first  # Most often, and for each leaf. 64 bits depend on the mode.
    # float8 and int4 have no implicit promotion. A wider float holds the numbers of float8, and
    # beside a float an integer has no say.
    floats = [dtype for dtype in dtypes if kind_of(dtype) >= REAL and not _is_float8(dtype)]
    with standard_promotion():
        return jnp.result_type(*floats or dtypes)


def _is_float8(dtype: Any) -> bool:
    return kind_of(dtype) == REAL and jnp.dtype(dtype).itemsize == 1
