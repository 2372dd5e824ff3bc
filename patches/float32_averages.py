"""float32_averages (opt-in): averages and sums of half-precision gradients are kept in float32.

bfloat16 has 8 bits. In ``ema(0.999)`` the decay itself rounds to 1, and each step adds 0.001 of the
difference, which is rounded away as soon as the average is half way: an average of ones ends at
0.5. The sum of ``apply_every(1000)`` stops at 256, and ``trace(0.99)`` of ones stops at
64 in place of 100.

Here new states have these sums in float32, which take twice the memory, and stock runs on float32
copies of the gradients. A state restored from a checkpoint keeps its dtypes, and so does one whose
``accumulator_dtype`` you chose. If you pass no params, the gradients stand in for them.

No upstream issue was found about the averages.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .._contract.dtypes import dtype_of, is_half
from .._contract.updates import asked_dtypes
from .._engine.patch import Patch, Stock
from ._support.in_float32 import InFloat32, MomentTransform

PATCH = Patch(
    "float32_averages",
    summary="`ema`, `trace` and `apply_every` stall in half precision: in bfloat16, the average of "
    "ones ends at 0.5",
    opt_in=True,
    allow_missing_targets=True,
)

_MODULES = ("optax.transforms._accumulation", "optax._src.transform")


class _UnlessAsked(InFloat32):
    """Run stock in float32, unless the user chose the dtype of the accumulator."""

    def __call__(self, stock: Stock, *args: Any, **kwargs: Any) -> Any:
        """Build stock's transformation."""
        asked = asked_dtypes(stock, args, kwargs)
        return stock(*args, **kwargs) if asked else super().__call__(stock, *args, **kwargs)


for _name, _field in {"ema": "ema", "trace": "trace", "apply_every": "grad_acc"}.items():
    _transform = MomentTransform(_name, _MODULES[-1], ">=0.1.2", (_field,))
    PATCH.wraps(_name, _MODULES, ">=0.1.2")(_UnlessAsked(_transform, is_half, wide_moments=True))


def _narrow(state: Any) -> str | None:
    return f"it is kept in {dtype_of(state)}" if is_half(state) else None


@PATCH.fault(">=0.1.2")
def narrow_averages(optax: Any) -> str | None:
    """Averages of half-precision gradients are kept in half precision."""
    params = jax.ShapeDtypeStruct((3, 4), jnp.bfloat16)
    return _narrow(jax.eval_shape(optax.ema(0.999).init, params).ema)


def _last_update(tx: Any, steps: int) -> float:
    """Return the last update for bfloat16 gradients of one."""
    ones = jnp.ones((4,), jnp.bfloat16)
    _, updates = jax.lax.scan(
        lambda state, _: tx.update(ones, state, ones)[::-1], tx.init(ones), None, steps
    )
    return float(updates[-1, 0])


@PATCH.fault(">=0.1.2", abstract=False)
def stalled_ema(optax: Any) -> str | None:
    """In bfloat16, ema(0.999) of ones ends at 0.5."""
    got = _last_update(optax.ema(0.999, debias=False), 10000)
    return None if got > 0.99 else f"after 10000 ones the average is {got:.3g}"


@PATCH.fault(">=0.1.2", abstract=False)
def stalled_sum(optax: Any) -> str | None:
    """In bfloat16, apply_every(1000) sums 1,000 ones to 256."""
    got = _last_update(optax.apply_every(1000), 1000)
    return None if got > 990 else f"the sum of 1000 ones is {got:.4g}"


@PATCH.fault(">=0.1.2", abstract=False)
def stalled_trace(optax: Any) -> str | None:
    """In bfloat16, trace(0.99) of ones ends below its limit of 100."""
    got = _last_update(optax.trace(0.99), 2000)
    return None if got > 99 else f"after 2000 ones the trace is {got:.3g}"
