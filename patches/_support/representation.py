"""Give stock a problem on any tree as the same problem in one dtype, float32 or wider.

A line search compares scalars that it computes from all leaves. On a tree of mixed dtypes it needs
one dtype for them; stock takes that of the first leaf, or fails. In half precision the scalars
overflow: 1 / vdot in L-BFGS is inf in float16 as soon as a step is short. Up to 0.2.4 stock also
compares complex slopes, which have no order; there, a complex leaf becomes its two parts.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    PyTree,
    cast,
    cast_like,
    count_cast,
    dtype_of,
    is_complex,
    is_inexact,
    kind_of,
    leaves,
    unflatten_like,
)
from ..._tally import count

if TYPE_CHECKING:
    from collections.abc import Callable


_SPLIT = "complex leaf split"


def stand_in_number(tree: PyTree, dtype: Any) -> Any:
    """Return one number for stock to see in place of a tree, of which it needs only the dtype.

    NumPy, because a probe must not create JAX arrays.
    """
    for leaf in leaves(tree):
        if kind_of(dtype_of(leaf)) >= 0 and dtype_of(leaf) != dtype:
            count_cast(leaf, dtype)
    return np.zeros((), dtype)


class Representation(NamedTuple):
    """Trees in one real dtype, as lists: a user-defined node need not accept a pair for a leaf.

    Attributes:
      dtype: the real dtype; complex leaves have parts of that dtype.
      split: whether a complex leaf becomes a pair of real ones.
    """

    dtype: Any
    split: bool = False

    def is_noop(self, *trees: PyTree) -> bool:
        """Check whether :meth:`cast_to_compute` would change nothing in these trees."""
        return all(
            is_inexact(leaf)
            and jnp.finfo(dtype_of(leaf)).dtype == self.dtype
            and not (self.split and is_complex(leaf))
            for leaf in leaves(trees)
        )

    def cast_to_compute(self, tree: PyTree, *, conjugate: bool = False) -> list[Any]:
        """List the leaves in the compute dtype; conjugate the complex ones on request."""

        def cast_leaf(leaf: Any) -> Any:
            if not is_complex(leaf):
                return cast(leaf, self.dtype)
            leaf = jnp.conj(leaf) if conjugate else leaf
            if self.split:
                count(_SPLIT)
                return cast(jnp.real(leaf), self.dtype), cast(jnp.imag(leaf), self.dtype)
            return cast(leaf, jnp.promote_types(self.dtype, jnp.complex64))

        return [cast_leaf(leaf) for leaf in leaves(tree)]

    def cast_to_output(
        self, computed: list[Any], like: PyTree, *, conjugate: bool = False
    ) -> PyTree:
        """Invert :meth:`cast_to_compute`, in the structure of ``like`` and the compute dtype."""

        def restore_leaf(part: Any) -> Any:
            leaf = jax.lax.complex(*part) if isinstance(part, tuple) else part
            return jnp.conj(leaf) if conjugate and is_complex(leaf) else leaf

        return unflatten_like(like, map(restore_leaf, computed))

    def on_compute_params(self, function: Callable[..., Any], like: PyTree) -> Callable[..., Any]:
        """Wrap a function of params as a function of cast params, with the same signature."""

        @functools.wraps(function)
        def wrapper(params: PyTree, *args: Any, **kwargs: Any) -> Any:
            return function(cast_like(self.cast_to_output(params, like), like), *args, **kwargs)

        return wrapper


def complex_places(*trees: PyTree) -> list[bool]:
    """Say of each place of some trees of one structure whether a complex leaf is there in any."""
    return [any(map(is_complex, row)) for row in zip(*map(leaves, trees))]


def in_parts(tree: PyTree, places: list[bool]) -> list[Any]:
    """List the leaves of a tree, with a pair of real ones at each complex place."""

    def parts(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.eval_shape(lambda x: (jnp.real(x), jnp.imag(x)), leaf)
        return jnp.real(leaf), jnp.imag(leaf)

    count(_SPLIT, sum(places))
    return [parts(leaf) if split else leaf for leaf, split in zip(leaves(tree), places)]


def joined(parts: list[Any]) -> list[Any]:
    """Invert :func:`in_parts`."""
    return [jax.lax.complex(*part) if isinstance(part, tuple) else part for part in parts]
