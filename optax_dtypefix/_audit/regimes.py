"""The regimes: dtypes of params and gradients, and the modes of JAX, that are measured."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from optax_dtypefix._dtypes import x64

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Regime:
    """One regime.

    Attributes:
      name: short, as in the heading of a column.
      params: dtypes of the matrix ``w`` and of the vector ``b``.
      grads: likewise; those of the params if not given.
      x64: whether ``jax_enable_x64`` is on.
      strict: whether ``jax_numpy_dtype_promotion`` is strict.
    """

    name: str
    params: tuple[Any, Any]
    grads: tuple[Any, Any] | None = None
    x64: bool = False
    strict: bool = False

    @property
    def same_dtypes(self) -> bool:
        """Whether gradients have the dtypes of their params, the usual case."""
        return self.grads is None

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """The modes of JAX that it wants, in this thread."""
        with contextlib.ExitStack() as stack:
            if self.x64:
                stack.enter_context(x64())
            if self.strict:
                stack.enter_context(jax.numpy_dtype_promotion("strict"))
            yield

    def trees(self) -> tuple[Any, Any]:
        """Abstract params and gradients."""
        params = _tree(self.params)
        return params, params if self.grads is None else _tree(self.grads)


def _tree(dtypes: tuple[Any, Any]) -> Any:
    matrix, vector = dtypes
    return {"w": jax.ShapeDtypeStruct((3, 4), matrix), "b": jax.ShapeDtypeStruct((4,), vector)}


_F32, _BF16, _F16, _F64 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.float64

REGIMES = (
    Regime("f32", (_F32, _F32)),
    Regime("bf16", (_BF16, _BF16)),
    Regime("f16", (_F16, _F16)),
    Regime("mixed", (_BF16, _F32)),
    Regime("integer leaf", (_F32, jnp.int32)),
    Regime("complex", (jnp.complex64, _F32)),
    Regime("f32 x64", (_F32, _F32), x64=True),
    Regime("bf16 x64", (_BF16, _BF16), x64=True),
    Regime("f64 x64", (_F64, _F64), x64=True),
    Regime("strict", (_F32, _F32), strict=True),
    Regime("wider", (_BF16, _BF16), (_F32, _F32)),
    Regime("narrower", (_F32, _F32), (_BF16, _BF16)),
    Regime("f64 grads", (_F32, _F32), (_F64, _F64), x64=True),
)
"""In the order of the columns: those with one dtype for params and gradients come first."""
