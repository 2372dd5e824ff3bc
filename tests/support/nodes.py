"""Pytree nodes that a user could define."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class Converting:
    """A node that makes arrays of its children, so it cannot contain shapes or other objects."""

    def __init__(self, *children: Any) -> None:
        self.children = tuple(map(jnp.asarray, children))

    def tree_flatten(self) -> Any:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        del aux
        return cls(*children)

    @property
    def child(self) -> Any:
        (child,) = self.children
        return child


@jax.tree_util.register_pytree_node_class
class Matrix(Converting):
    """A converting node that checks the shape of its child, too."""

    def __init__(self, child: Any) -> None:
        super().__init__(child)
        if self.child.ndim != 2:
            raise ValueError(self.child.shape)
