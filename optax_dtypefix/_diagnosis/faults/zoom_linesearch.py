"""Reproduce the faults of ``zoom_linesearch``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..._contract.dtypes import PyTree, is_inexact, leaves
from ..._contract.widths import real_dtype
from . import _reproduce as demo


def _loss(params: PyTree) -> Any:
    """Compute a quadratic, real also for complex params, in the dtype of the first leaf."""
    found = [leaf for leaf in leaves(params) if is_inexact(leaf)]
    return sum(jnp.sum(jnp.real(leaf * jnp.conj(leaf))).astype(real_dtype(found)) for leaf in found)


_LBFGS = demo.call("lbfgs")
_BACKTRACKING = demo.call("scale_by_backtracking_linesearch", max_backtracking_steps=3)

FAULTS = {
    "weak_types_backtracking": demo.step(
        "State of the backtracking search is weakly typed until the first step: two traces",
        _BACKTRACKING,
        "float32",
        loss=_loss,
    ),
    "float32_in_64_bit_mode": demo.step(
        "float32 params in 64-bit mode: TypeError from cond, later float64 in state and inside",
        _LBFGS,
        "float32",
        in_x64=True,
        loss=_loss,
    ),
    "bfloat16": demo.step(
        "bfloat16 params: TypeError from cond, later a changing state",
        _LBFGS,
        "bfloat16",
        loss=_loss,
    ),
    "mixed_tree": demo.step(
        "Leaves of different dtypes: TypeError, or updates of the wrong dtype",
        _LBFGS,
        *("bfloat16", "float32"),
        loss=_loss,
    ),
    "mixed_precision": demo.step(
        "float32 gradients on bfloat16 params: TypeError, or the state changes dtype",
        _LBFGS,
        "bfloat16",
        grads="float32",
        loss=_loss,
    ),
    "bfloat16_backtracking": demo.step(
        "bfloat16 params: the state of the backtracking search changes",
        _BACKTRACKING,
        "bfloat16",
        loss=_loss,
    ),
    "stored_gradient": demo.step(
        "store_grad=True on bfloat16 params: TypeError about a cotangent",
        demo.call("scale_by_backtracking_linesearch", max_backtracking_steps=3, store_grad=True),
        "bfloat16",
        loss=_loss,
    ),
    "weak_types": demo.step(
        "State of L-BFGS is weakly typed until the first step: two traces",
        _LBFGS,
        "float32",
        loss=_loss,
    ),
    "float64": demo.step(
        "float64 in 64-bit mode: cond and checkpointed scan refuse the state of L-BFGS",
        _LBFGS,
        "float64",
        in_x64=True,
        in_cond=True,
        loss=_loss,
    ),
}
