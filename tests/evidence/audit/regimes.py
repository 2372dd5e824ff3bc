"""List the regimes to measure: dtypes of params and gradients, and modes of JAX."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from optax_dtypefix._contract.x64 import x64

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Regime:
    """One regime.

    Attributes:
      name: a short name, the heading of a column.
      params: dtypes of the matrix ``w`` and of the vector ``b``.
      grads: dtypes of their gradients; those of the params if not given.
      x64: whether ``jax_enable_x64`` is on.
      strict: whether ``jax_numpy_dtype_promotion`` is strict.
      nodes: whether each leaf is in a user-defined node that only takes arrays.
    """

    name: str
    params: tuple[Any, Any]
    grads: tuple[Any, Any] | None = None
    x64: bool = False
    strict: bool = False
    nodes: bool = False

    @property
    def same_dtypes(self) -> bool:
        """Whether gradients have the dtypes of their params, the usual case."""
        return self.grads is None

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """Set the modes of JAX for this regime, in this thread."""
        with contextlib.ExitStack() as stack:
            if self.x64:
                stack.enter_context(x64())
            if self.strict:
                stack.enter_context(jax.numpy_dtype_promotion("strict"))
            yield

    def trees(self) -> tuple[Any, Any]:
        """Make params and gradients: abstract ones, and arrays in nodes that take no shapes."""
        params = _tree(self.params)
        if self.nodes:
            params = jax.tree_util.tree_map(lambda p: Node(jnp.zeros(p.shape, p.dtype)), params)
        return params, params if self.grads is None else _tree(self.grads)


@jax.tree_util.register_pytree_node_class
class Node:
    """A user-defined node whose constructor converts its argument, as many do."""

    def __init__(self, child: Any) -> None:
        self.child = jnp.asarray(child)

    def tree_flatten(self) -> tuple[Any, None]:
        return (self.child,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Node:
        return cls(*children)


def _tree(dtypes: tuple[Any, Any]) -> Any:
    matrix, vector = dtypes
    return {"w": jax.ShapeDtypeStruct((3, 4), matrix), "b": jax.ShapeDtypeStruct((4,), vector)}


_F32, _BF16, _F16, _F64 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.float64
_I32, _C64 = jnp.int32, jnp.complex64

REGIMES = (
    Regime("f32", (_F32, _F32)),
    Regime("bf16", (_BF16, _BF16)),
    Regime("f16", (_F16, _F16)),
    Regime("mixed", (_BF16, _F32)),
    Regime("integer leaf", (_F32, _I32)),
    Regime("integer matrix", (_I32, _F32)),
    Regime("complex", (_C64, _F32)),
    Regime("all complex", (_C64, _C64)),
    Regime("f32 x64", (_F32, _F32), x64=True),
    Regime("bf16 x64", (_BF16, _BF16), x64=True),
    Regime("f64 x64", (_F64, _F64), x64=True),
    Regime("strict", (_F32, _F32), strict=True),
    Regime("nodes", (_F32, _F32), nodes=True),
    Regime("wider", (_BF16, _BF16), (_F32, _F32)),
    Regime("narrower", (_F32, _F32), (_BF16, _BF16)),
    Regime("f16 grads", (_F32, _F32), (_F16, _F16)),
    Regime("int8 grads", (_F32, _F32), (jnp.int8, jnp.int8)),
    Regime("f64 grads", (_F32, _F32), (_F64, _F64), x64=True),
)
"""In the order of the columns: first those with the same dtypes for params and gradients."""
