"""Give stock a problem on any tree as the same problem in one dtype, float32 or wider.

Stock computes a few scalars from all leaves: slopes, distances, inner products. On a tree of mixed
dtypes it needs one dtype for them; stock takes that of the first or of the narrowest leaf, or
fails. In half precision the scalars overflow or stall. Complex scalars have no order, so a complex
leaf may become its two parts: the algorithms are made for real vectors.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._contract.dtypes import (
    COMPLEX,
    PyTree,
    all_dtypes,
    cast,
    dtype_of,
    is_inexact,
    kind_of,
    leaves,
    tree_map,
    unflatten_like,
)
from ..._contract.widths import promoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def average_dtype(param: Any, *, squares: bool = True) -> Any:
    """Choose the dtype of an average that is kept for a param: that of the param.

    float32 for integers, and for averages of squares in float16, where small ones are 0.
    """
    dtype = dtype_of(param)
    if not is_inexact(param) or (squares and dtype == jnp.float16):
        return jnp.dtype(jnp.float32)
    return dtype


class Representation(NamedTuple):
    """Lists of leaves in one real dtype, in place of trees of one structure.

    Lists, because a user-defined node need not accept a pair for a leaf.

    Attributes:
      dtype: the real dtype. A complex leaf that stays one has parts of that dtype.
      pairs: for each leaf, whether it becomes a pair of real ones.
    """

    dtype: Any
    pairs: list[bool]

    @classmethod
    def of(cls, dtype: Any, *trees: PyTree, split: bool = True) -> Representation:
        """Represent some trees of one structure in a dtype.

        Args:
          dtype: the real dtype, see :class:`Representation`.
          *trees: where a leaf of one is complex, those of all are split.
          split: whether complex leaves become pairs.
        """
        rows = zip(*map(all_dtypes, trees))
        return cls(dtype, [split and COMPLEX in map(kind_of, row) for row in rows])

    def to_list(self, tree: PyTree) -> list[Any]:
        """List the leaves of a tree, with a pair at each place that is split."""
        rows = zip(leaves(tree), self.pairs)
        return [self._parts(leaf) if pair else self._cast(leaf) for leaf, pair in rows]

    def to_tree(self, flat: Iterable[Any], like: PyTree) -> PyTree:
        """Invert :meth:`to_list`, in the structure of ``like``; the dtype is still that of all."""
        return unflatten_like(like, (_join(*x) if isinstance(x, tuple) else x for x in flat))

    def of_list(self, function: Callable[..., Any], like: PyTree) -> Callable[..., Any]:
        """Turn a function of a tree into a function of its list, with the same signature.

        The function sees the dtypes of ``like``, and complex numbers where stock computes them.
        """

        def as_given(leaf: Any, given: Any) -> Any:
            return leaf if is_complex(leaf) > is_complex(given) else cast(leaf, dtype_of(given))

        @functools.wraps(function)
        def wrapper(flat: list[Any], *args: Any, **kwargs: Any) -> Any:
            tree = tree_map(as_given, self.to_tree(flat, like), like)
            return function(tree, *args, **kwargs)

        return wrapper

    def _parts(self, leaf: Any) -> tuple[Any, Any]:
        if isinstance(leaf, jax.ShapeDtypeStruct):  # ``init`` may be given no more than shapes.
            leaf = jax.eval_shape(jnp.real, leaf)
            return self._cast(leaf), self._cast(leaf)
        return self._cast(jnp.real(leaf)), self._cast(jnp.imag(leaf))

    def _cast(self, leaf: Any) -> Any:
        return cast(leaf, promoted(self.dtype, jnp.complex64) if is_complex(leaf) else self.dtype)


def _join(real: Any, imaginary: Any) -> Any:
    if isinstance(real, jax.ShapeDtypeStruct):  # Some releases keep the params as they are given.
        return jax.eval_shape(jax.lax.complex, real, imaginary)
    return jax.lax.complex(real, imaginary)


def is_complex(leaf: Any) -> bool:
    """Check whether a leaf is complex."""
    return kind_of(dtype_of(leaf)) == COMPLEX
