"""Measure one cell of the audit: one case in one regime, against rules C1 to C3."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from optax_dtypefix._contract.dtypes import COMPLEX, dtype_of, is_inexact, kind_of, leaves, tree_map
from optax_dtypefix._contract.updates import limits
from optax_dtypefix._diagnosis.check import TracedStep
from optax_dtypefix._diagnosis.check_command.worker import loss
from optax_dtypefix._diagnosis.result import Violation
from optax_dtypefix._errors import summarize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evidence.audit.cases import Case
    from evidence.audit.regimes import Regime

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one cell.

    Attributes:
      broken: the violations of the contract.
      updates: the dtype of each update, cut to its bound (C2). Patched updates must not be narrower
        than those of stock. Empty if the case raises.
    """

    broken: list[Violation]
    updates: list[str]


def measure(case: Case, regime: Regime, *, eager: bool = True) -> Outcome:
    """Trace the case under jit and in scan; the plain variant also runs once, eagerly."""
    with regime.modes():
        try:
            tx = _Watched(case.build())
            broken = list(traced_step(case, regime, tx).step())
            if eager and not case.inside and case.rate in ("", "float"):
                broken += _eager(case, regime)
        except Exception as error:  # The error of the transformation is the outcome.
            return Outcome([Violation("error", "", summarize(error))], [])
        return Outcome(broken, tx.updates)


def traced_step(case: Case, regime: Regime, tx: Any = None) -> TracedStep:
    """Build the case, and trace one step of it on the trees of the regime."""
    params, grads = _trees(case, regime)
    tx = _Watched(case.build()) if tx is None else tx
    return TracedStep(tx, params, grads, extra_args_of(case, params, grads))


class _Watched:
    """A transformation that remembers the dtypes of its updates."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self.updates: list[str] = []

    def init(self, params: PyTree) -> PyTree:
        return self._tx.init(params)

    def update(
        self, grads: PyTree, state: PyTree, params: PyTree, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        updates, new_state = self._tx.update(grads, state, params, **extra_args)
        dtypes = limits(updates, grads, params, None) or ()
        self.updates = [*map(_kept, dtypes, leaves(grads), leaves(params))]
        return updates, new_state


def _kept(dtype: Any, grad: Any, param: Any) -> str:
    """Return the dtype that the patched update must keep: for real leaves, its real part.

    In stock optax a complex leaf makes hyperparameters complex, and so the updates of all leaves.
    """
    if max(map(kind_of, map(dtype_of, (grad, param)))) < COMPLEX == kind_of(dtype):
        return str(jnp.finfo(dtype).dtype)
    return str(dtype)


def _trees(case: Case, regime: Regime) -> tuple[PyTree, PyTree]:
    params, grads = regime.trees()
    return params, tree_map(_batch, grads) if case.per_example else grads


def _batch(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype)
    return jnp.stack([leaf, leaf])


def extra_args_of(case: Case, params: PyTree, grads: PyTree) -> dict[str, Any]:
    abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves(params))
    value = jax.eval_shape(loss, params) if abstract else loss(params)
    arguments = {"value": value, "loss": value, "grad": grads, "value_fn": loss, "obj_fn": loss}
    return {name: arguments[name] for name in case.extra_args}


def _eager(case: Case, regime: Regime) -> Iterator[Violation]:
    tx = _Watched(case.build())
    shapes, grad_shapes = _trees(case, regime)
    params = tree_map(lambda leaf: jnp.full(leaf.shape, 2, leaf.dtype), shapes)
    grads = tree_map(lambda leaf: jnp.full(leaf.shape, 1, leaf.dtype), grad_shapes)
    with jax.disable_jit():  # One primitive at a time: nothing compiles but the primitives.
        state = tx.init(params)
        extra_args = extra_args_of(case, params, grads)
        updates, new_state = tx.update(grads, state, params, **extra_args)
    bounded = limits(updates, grads, params, None)
    state_dtypes = list(map(dtype_of, leaves(state)))
    for what, tree, wanted in (("updates", updates, bounded), ("state", new_state, state_dtypes)):
        got = list(map(dtype_of, leaves(tree)))
        if wanted is not None and got != wanted:
            yield Violation("eager", "", f"{what}: {_names(wanted)} become {_names(got)}")
    for leaf in leaves(updates):
        if is_inexact(leaf) and not bool(jnp.isfinite(leaf).all()):
            yield Violation("eager", "", "not finite, for finite gradients")
            return


def _names(dtypes: list[Any]) -> str:
    return ", ".join(map(str, dtypes))
