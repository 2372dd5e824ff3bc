"""conditional: wrappers that use ``lax.cond`` accept an inner transformation that changes dtypes.

One branch of ``cond`` returns the updates and the state of the inner transformation. The other
branch returns the gradients, or zeros like them, and the old state. If the inner transformation
changes a dtype, the branches differ and ``cond`` raises TypeError. Here both branches have the
dtypes of the inner updates, and the inner state keeps its dtypes.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from .._contract.dtypes import (
    PyTree,
    cast,
    dtype_of,
    kind_of,
    leaves,
    same_structure,
    strip_weak_type,
    unflatten_like,
)
from .._contract.kinds import promote_initial_state
from .._contract.promotion import standard_promotion
from .._contract.state import cast_back
from .._contract.updates import cast_updates
from .._engine.patch import Stock
from .._tally import Tally
from .branches import fit, run_in_agreement
from .door.closures import arguments_in, builder_of, with_arguments
from .door.rebuild import Call, rebuild


class _Inner(NamedTuple):
    """What stock calls. Before 0.1.5 any object with these two may be inside, as ``MultiSteps`` is.

    Of a tuple, equinox can take out the arrays and hash the rest.
    """

    init: Callable[..., Any]
    update: Callable[..., Any]


def replace(tx: Any, call: Call, tally: Tally) -> Any:
    """Lift a transformation that has another one inside."""
    builder = builder_of(tx.update)
    inner = dict(arguments_in(builder, tx.update))["inner"]

    def inner_init(params: PyTree) -> PyTree:
        return strip_weak_type(promote_initial_state(inner.update, inner.init(params), params))

    def around(function: Callable[..., Any], **changed: Any) -> Callable[..., Any]:
        """Let a function of stock call other functions of the inner transformation."""
        new = _Inner(inner.init, inner.update)._replace(**changed)
        return with_arguments(builder, function, lambda _, value: new if value is inner else value)

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        grads = leaves(updates)

        def run(dtypes: list[Any]) -> tuple[PyTree, PyTree]:
            final = dtypes

            def inner_update(
                _: PyTree, inner_state: PyTree, /, params: PyTree = None, **extra_args: Any
            ) -> tuple[PyTree, PyTree]:
                nonlocal final
                # The user's gradients, in the user's dtypes: the other branch may have others.
                new_updates, new_state = inner.update(updates, inner_state, params, **extra_args)
                after = cast_back(new_state, inner_state)
                if not same_structure(new_updates, updates):
                    return new_updates, after  # cond reports it.
                bounded = leaves(cast_updates(new_updates, updates, params, inner_state))
                final = [_within_kind(dtype_of(u), dtype) for u, dtype in zip(bounded, dtypes)]
                return unflatten_like(updates, fit(bounded, dtypes)), after

            given = unflatten_like(updates, map(cast, grads, dtypes))
            stock = around(tx.update, update=inner_update)
            new_updates, new_state = stock(given, state, params, **extra_args)
            return unflatten_like(updates, map(cast, leaves(new_updates), final)), new_state

        with standard_promotion():
            return run_in_agreement(run, list(map(dtype_of, grads)))

    init = around(tx.init, init=inner_init)
    return rebuild(tx, call, update_fn, init, also_in_float32=True, tally=tally)


def _within_kind(inner: Any, common: Any) -> Any:
    """Choose the inner transformation's dtype for both branches, unless the kind would change."""
    return inner if kind_of(inner) == kind_of(common) else common


def periodic_update(
    stock: Stock, new_tensors: PyTree, old_tensors: PyTree, *args: Any, **kwargs: Any
) -> PyTree:
    """Cast the new tensors to the dtypes of the old ones."""
    return stock(cast_back(new_tensors, old_tensors), old_tensors, *args, **kwargs)
