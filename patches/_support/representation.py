"""Poses a problem on any tree to stock optax as the same problem in one dtype, float32 or wider.

A line search compares scalars that it computes from all leaves: in a tree of mixed dtypes it needs
one dtype for them, and stock takes that of the first leaf, or fails. In half precision the scalars
overflow: 1 / vdot in L-BFGS is inf in float16 as soon as a step is short. Up to 0.2.4 it also
compares complex slopes, which have no order: there, a complex leaf travels as its two parts.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..._contract.dtypes import (
    PyTree,
    cast,
    cast_like,
    dtype_of,
    is_complex,
    is_inexact,
    leaves,
    unflatten_like,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def real_dtype(tree: PyTree) -> Any:
    """The widest real dtype among the leaves of a tree, complex ones counting as their parts."""
    found = [jnp.finfo(dtype_of(leaf)).dtype for leaf in leaves(tree) if is_inexact(leaf)]
    return functools.reduce(jnp.promote_types, found) if found else jnp.dtype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Representation:
    """Trees in one real dtype, as lists: a pair is no leaf that a node of the user's may be given.

    Attributes:
      dtype: the real dtype; complex leaves have parts of that dtype.
      split: whether a complex leaf becomes a pair of real ones.
    """

    dtype: Any
    split: bool = False

    def is_noop(self, *trees: PyTree) -> bool:
        """Whether :meth:`encode` would change nothing in these trees."""
        return all(
            is_inexact(leaf)
            and jnp.finfo(dtype_of(leaf)).dtype == self.dtype
            and not (self.split and is_complex(leaf))
            for leaf in leaves(trees)
        )

    def encode(self, tree: PyTree, *, conjugate: bool = False) -> list[Any]:
        """The leaves in the one dtype; the conjugates of complex ones on request."""

        def encode_leaf(leaf: Any) -> Any:
            if not is_complex(leaf):
                return cast(leaf, self.dtype)
            leaf = jnp.conj(leaf) if conjugate else leaf
            if self.split:
                return cast(jnp.real(leaf), self.dtype), cast(jnp.imag(leaf), self.dtype)
            return cast(leaf, jnp.promote_types(self.dtype, jnp.complex64))

        return [encode_leaf(leaf) for leaf in leaves(tree)]

    def decode(self, encoded: list[Any], like: PyTree, *, conjugate: bool = False) -> PyTree:
        """The inverse of :meth:`encode`, with the structure of ``like``, still in the one dtype."""

        def decode_leaf(part: Any) -> Any:
            leaf = jax.lax.complex(*part) if isinstance(part, tuple) else part
            return jnp.conj(leaf) if conjugate and is_complex(leaf) else leaf

        return unflatten_like(like, map(decode_leaf, encoded))

    def on_encoded(self, function: Callable[..., Any], like: PyTree) -> Callable[..., Any]:
        """A function of params as one of encoded params, with the same signature."""

        @functools.wraps(function)
        def wrapper(params: PyTree, *args: Any, **kwargs: Any) -> Any:
            return function(cast_like(self.decode(params, like), like), *args, **kwargs)

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

    return [parts(leaf) if split else leaf for leaf, split in zip(leaves(tree), places)]


def joined(parts: list[Any]) -> list[Any]:
    """Invert :func:`in_parts`."""
    return [jax.lax.complex(*part) if isinstance(part, tuple) else part for part in parts]
