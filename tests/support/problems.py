"""Small problems for every public transformation: params, gradients and extra arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from support.trees import leaves, tree_map, tree_of

if TYPE_CHECKING:
    from evidence.audit.cases import Case


def problem(
    params: tuple[Any, ...], grads: tuple[Any, ...] | None = None, *, per_example: bool = False
) -> tuple[Any, Any]:
    """Return params of these dtypes, and gradients of these or the same, one a row on request."""
    given = tree_of(*(grads or params), seed=1)
    if per_example:
        given = tree_map(lambda leaf: jnp.stack([leaf, leaf]), given)
    return tree_of(*params), given


def loss(params: Any) -> Any:
    """Sum the squares."""
    return sum(jnp.sum(jnp.square(leaf)) for leaf in leaves(params))


def extra_args(case: Case, params: Any, grads: Any) -> dict[str, Any]:
    """Return the extra arguments that the update of a transformation requires."""
    value = loss(params)
    arguments = {"value": value, "loss": value, "grad": grads, "value_fn": loss, "obj_fn": loss}
    return {name: arguments[name] for name in case.extra_args}
