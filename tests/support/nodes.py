"""Pytree nodes that a user could define."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class Node:
    """A node that keeps its children as they are."""

    def __init__(self, *children: Any) -> None:
        self.children = children

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
class Converting(Node):
    """A node that makes arrays of its children, so it cannot contain shapes or other objects."""

    def __init__(self, *children: Any) -> None:
        super().__init__(*map(jnp.asarray, children))


@jax.tree_util.register_pytree_node_class
class Matrix(Converting):
    """A node that makes an array of its child and checks the shape."""

    def __init__(self, child: Any) -> None:
        super().__init__(child)
        if self.child.ndim != 2:
            raise ValueError(self.child.shape)


@jax.tree_util.register_pytree_node_class
class Bfloat16Only(Node):
    """A node that refuses arrays of any other dtype."""

    def __init__(self, *children: Any) -> None:
        super().__init__(*children)
        if any(getattr(child, "dtype", jnp.bfloat16) != jnp.bfloat16 for child in children):
            raise TypeError("a child is not bfloat16")
