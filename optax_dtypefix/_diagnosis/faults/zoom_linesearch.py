"""Reproduce the faults of ``zoom_linesearch``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..._contract.dtypes import PyTree, is_inexact, is_weak, leaves
from ..._contract.widths import real_dtype
from . import _reproduce as demo


def _loss(params: PyTree) -> Any:
    """Compute a quadratic, real also for complex params, in the dtype of the first leaf."""
    found = [leaf for leaf in leaves(params) if is_inexact(leaf)]
    return sum(jnp.sum(jnp.real(leaf * jnp.conj(leaf))).astype(real_dtype(found)) for leaf in found)


def _build_lbfgs(optax: Any) -> Any:
    return demo.public(optax, "lbfgs")()


def _build_backtracking(optax: Any, *, store_grad: bool = False) -> Any:
    build = demo.public(optax, "scale_by_backtracking_linesearch")
    return build(max_backtracking_steps=3, store_grad=store_grad)


def _describe_weak(tx: Any) -> str | None:
    # This is enough to know, and to trace a search takes long.
    if any(map(is_weak, leaves(demo.initial(tx, jnp.float32)))):
        return "the state is weakly typed before the first step, and not after it"
    return demo.one_step(tx, jnp.float32, loss=_loss)


def _trace_in_cond(tx: Any) -> None:
    """Pass the state through ``cond(pred, update, keep)``, as in a checkpointed scan."""

    def maybe_step(keep: Any, params: PyTree) -> Any:
        extra = {"value": _loss(params), "grad": params, "value_fn": _loss}

        def step(state: Any) -> Any:
            return tx.update(params, state, params, **extra)[1]

        return jax.lax.cond(keep, lambda state: state, step, tx.init(params))

    jax.eval_shape(maybe_step, jax.ShapeDtypeStruct((), jnp.bool_), demo.shapes(jnp.float64))


FAULTS = {
    "weak_types_backtracking": demo.step(
        "State of the backtracking search is weakly typed until the first step: two traces",
        _build_backtracking,
        jnp.float32,
        loss=_loss,
    ),
    "float32_in_64_bit_mode": demo.step(
        "float32 params in 64-bit mode: TypeError from cond, later float64 in state and inside",
        _build_lbfgs,
        jnp.float32,
        in_x64=True,
        inside=True,
        loss=_loss,
    ),
    "bfloat16": demo.step(
        "bfloat16 params: TypeError from cond, later a changing state",
        _build_lbfgs,
        jnp.bfloat16,
        loss=_loss,
    ),
    "complex": demo.step(
        "Complex params: TypeError, later two traces", _build_lbfgs, jnp.complex64, loss=_loss
    ),
    "mixed_tree": demo.step(
        "Leaves of different dtypes: TypeError, or updates of the wrong dtype",
        _build_lbfgs,
        *(jnp.bfloat16, jnp.float32),
        loss=_loss,
    ),
    "mixed_precision": demo.step(
        "float32 gradients on bfloat16 params: TypeError, or the state changes dtype",
        _build_lbfgs,
        jnp.bfloat16,
        grads=jnp.float32,
        loss=_loss,
    ),
    "bfloat16_backtracking": demo.step(
        "bfloat16 params: the state of the backtracking search changes",
        _build_backtracking,
        jnp.bfloat16,
        loss=_loss,
    ),
    "stored_gradient": demo.step(
        "store_grad=True on bfloat16 params: TypeError about a cotangent",
        lambda optax: _build_backtracking(optax, store_grad=True),
        jnp.bfloat16,
        loss=_loss,
    ),
    "weak_types": demo.traced(
        demo.row(
            "State of L-BFGS is weakly typed until the first step: two traces",
            _build_lbfgs,
            _describe_weak,
        )
    ),
    "float64": demo.traced(
        demo.row(
            "float64 in 64-bit mode: cond and checkpointed scan refuse the state of L-BFGS",
            _build_lbfgs,
            _trace_in_cond,
            in_x64=True,
        )
    ),
}
