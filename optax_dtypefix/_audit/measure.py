"""One cell of the audit: one transformation in one regime, against C1 to C3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from optax_dtypefix._check import Problem, Violation
from optax_dtypefix._dtypes import dtype_of, is_inexact, leaves, tree_map
from optax_dtypefix._errors import in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optax_dtypefix._audit.regimes import Regime
    from optax_dtypefix._audit.transformations import Subject

PyTree = Any


def violations(subject: Subject, regime: Regime, *, eager: bool = True) -> list[Violation]:
    """What the subject breaks: traced under jit and in scan; as it is, also run once, eagerly."""
    with regime.modes():
        try:
            broken = list(problem_of(subject, regime).step())
            if eager and not subject.inside and subject.rate in ("", "float"):
                broken += _eager(subject, regime)
        except Exception as error:  # Of the transformation; it is the outcome.
            return [Violation("error", "", in_words(error))]
    return broken


def problem_of(subject: Subject, regime: Regime) -> Problem:
    """The transformation, newly built, with the shapes of a regime."""
    tx = subject.build()
    params, grads = _trees(subject, regime)
    return Problem(tx, params, grads, _extra_args(subject, params, grads))


def _trees(subject: Subject, regime: Regime) -> tuple[PyTree, PyTree]:
    params, grads = regime.trees()
    return params, tree_map(_batch, grads) if subject.per_example else grads


def _batch(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype)


def loss(params: PyTree) -> Any:
    """A sum of squares, in the dtype that the leaves promote to, also where nothing promotes."""
    with jax.numpy_dtype_promotion("standard"):
        return sum(jnp.sum(jnp.square(jnp.abs(leaf))) for leaf in leaves(params))


def _extra_args(subject: Subject, params: PyTree, grads: PyTree) -> dict[str, Any]:
    abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves(params))
    value = jax.eval_shape(loss, params) if abstract else loss(params)
    arguments = {"value": value, "loss": value, "grad": grads, "value_fn": loss, "obj_fn": loss}
    return {name: arguments[name] for name in subject.extra_args}


def _eager(subject: Subject, regime: Regime) -> Iterator[Violation]:
    tx = subject.build()
    shapes, grad_shapes = _trees(subject, regime)
    params = tree_map(lambda leaf: jnp.full(leaf.shape, 2, leaf.dtype), shapes)
    grads = tree_map(lambda leaf: jnp.full(leaf.shape, 1, leaf.dtype), grad_shapes)
    state = tx.init(params)
    extra_args = _extra_args(subject, params, grads)
    updates, new_state = tx.update(grads, state, params, **extra_args)
    for what, tree, like in (("updates", updates, grads), ("state", new_state, state)):
        got, wanted = (list(map(dtype_of, leaves(part))) for part in (tree, like))
        if got != wanted:
            yield Violation("eager", "", f"{what}: {wanted} become {got}")
    for leaf in leaves(updates):
        if is_inexact(leaf) and not bool(jnp.isfinite(leaf).all()):
            yield Violation("eager", "", "not finite, for finite gradients")
            return
