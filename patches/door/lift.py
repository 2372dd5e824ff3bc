"""Lift once: the update that the user calls gives stock wide copies, and casts back at the end.

What the user calls is the update of a chain, or of one transformation. It casts gradients and
params to float32 where they are too narrow for stock, and runs stock, with all links of the chain.
Then it rounds the moments and casts the state back, and bounds the updates: once, in ``_finish``.
A link inside runs as stock runs it, on wide copies of its own state. What is not lifted, such as a
transformation, a mask or an objective of the user's, sees the user's leaves: ``users.py``.
"""

from __future__ import annotations

import operator
from typing import Any, Callable

import numpy as np

from ..._contract.dtypes import (
    PyTree,
    all_dtypes,
    dtypes_in,
    is_half_dtype,
    leaves,
    same_structure,
    strong_dtypes,
    unflatten_like,
)
from ..._contract.float32 import dtypes_in_float32
from ..._contract.moments import moments_in
from ..._contract.promotion import mode_of_promotion, standard_promotion
from ..._contract.signatures import positional_names
from ..._contract.state import cast_back
from ..._contract.steps import counted, note
from ..._contract.updates import cast_updates, subtrees_like
from ..._contract.widths import compute_dtype
from .lifting import AS_STOCK, Lifting
from .lifts import FLOAT16, NOTHING, Asking
from .rebuild import Call, accept_by_name, copy_shared_arrays, in_place_of
from .start import start
from .users import STEP, Step, as_the_user_sees, in_step, is_called

_FLOAT32 = np.dtype(np.float32)

_Trees = tuple[PyTree, Any, PyTree]
"""Gradients, state and params."""


def lift(tx: Any, call: Call, asking: Asking) -> Any:
    """Return a transformation of stock with an ``init`` and an ``update`` that lift it.

    Args:
      tx: the transformation, as stock builds it.
      call: of optax, which returns it.
      asking: what patches ask for.
    """
    lifting = Lifting(tx, asking)

    def init_fn(params: PyTree) -> Any:
        # Not in the first step: that is timed, and may be the only one.
        _ = lifting.within if dtypes_in(params) <= {_FLOAT32} else lifting.exact
        return copy_shared_arrays(start(lifting, update_fn, params), params)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        outer = STEP.get()
        if outer is not None:  # An update around this one has lifted.
            run = _by_itself(lifting) if lifting.opted_out & outer.lifted else lifting.step
            return run(updates, state, params, **extra_args)
        if lifting in AS_STOCK.get():  # An update around this one runs as stock.
            return lifting.tx.update(updates, state, params, **extra_args)  # type: ignore[no-any-return]
        dtypes = dtypes_in_float32(state, updates, params, extra_args)
        if dtypes is None:
            return _take(lifting, (updates, state, params), extra_args)
        new_updates, new_state = lifting.run_stock(updates, state, params, **extra_args)
        # User-defined code inside, such as a schedule, may return any dtype.
        if new_state is not state and strong_dtypes(new_state) != dtypes:
            new_state = cast_back(new_state, state)
        return new_updates, new_state

    named = accept_by_name(positional_names(tx.update), update_fn)
    update = in_place_of(tx.update, named, call, operator.attrgetter("update"))
    init = in_place_of(tx.init, init_fn, call, operator.attrgetter("init"))
    update.__wrapped__.lifting = init.__wrapped__.lifting = lifting
    return tx._replace(init=init, update=update)


def _by_itself(lifting: Lifting) -> Callable[..., tuple[PyTree, Any]]:
    """Return an update that takes a step of its own inside of a step: a patch of it is off."""

    def update(*given: Any, **extra_args: Any) -> tuple[PyTree, Any]:
        return _take(lifting, given, extra_args)

    return as_the_user_sees(update, is_link=True)


def _take(lifting: Lifting, given: _Trees, extra_args: dict[str, Any]) -> tuple[PyTree, Any]:
    """Take a step on copies, which no update around this one has lifted."""
    updates, state, params = given
    like = all_dtypes(updates if params is None else params)
    dtypes = {*all_dtypes(updates), *like, *(lifting.narrow_requested & lifting.narrow)}
    if lifting.narrow.isdisjoint(dtypes):
        dtypes |= dtypes_in(moments_in(state))
    acting = [tally for ask, tally in lifting.every if not ask.narrow.isdisjoint(dtypes)]
    tallies = acting or [tally for ask, tally in lifting.every if ask.keeps]
    if not tallies:
        return lifting.run_stock(updates, state, params, **extra_args)  # type: ignore[no-any-return]
    in_half = bool(acting) and any(map(is_half_dtype, like))
    for tally in tallies:
        tally.reach(in_half=in_half)
    if not FLOAT16.isdisjoint(all_dtypes(state)):
        from .range import widen_range  # Few programs train in float16.

        state = widen_range(lifting.after, lifting.traced, given, extra_args)
    dtype = compute_dtype((updates, params)) if lifting.one_dtype else None
    mode = mode_of_promotion()
    lifted = lifting.narrow.intersection(dtypes)
    step = Step(updates, params, lifting.narrow, lifted, dtype, lifting.integers, mode)
    try:
        wide_updates, wide_params = step.lift((updates, params))
        wide = wide_updates, state, wide_params
    except Exception:  # A pytree node of the user's takes no other dtype.
        step, wide = Step(updates, params, NOTHING, NOTHING, None, False, mode), given
    users = {n: step.lend(v) if is_called(n, v) else v for n, v in extra_args.items()}
    with standard_promotion(mode), counted(state, given) as is_outermost:
        new_updates, new_state = in_step(step, lifting.step, *wide, **users)
        result = _finish(lifting, step, (new_updates, new_state), (updates, state, params))
    if is_outermost:
        note(result[0], *given)
    if lifting.all.inner:
        step.free(keep=(given, result))
    return result


def _finish(
    lifting: Lifting, step: Step, new: tuple[PyTree, Any], given: _Trees
) -> tuple[PyTree, Any]:
    """Round the moments, cast the state back and bound the updates: the one place for all."""
    (new_updates, new_state), (updates, state, _) = new, given
    if not same_structure(new_state, state) and len(leaves(new_state)) == len(leaves(state)):
        state = unflatten_like(new_state, leaves(state))  # In the user's subclass of a state.
    new_updates = _bound(lifting, step, new_updates, given)
    return new_updates, cast_back(new_state, state, updates)


def _bound(lifting: Lifting, step: Step, new_updates: PyTree, given: _Trees) -> PyTree:
    updates, state, params = given
    kept = None
    if lifting.all.like_grads or (params is None and lifting.widens):
        params = updates  # What is wide by a patch alone tells nothing of the params.
    elif params is None:  # What the state keeps for the params tells their dtypes.
        kept = state
        if step.copies and not subtrees_like(state, updates):
            moments_of_state = dtypes_in(moments_in(state))
            step.ask(new_updates, tuple(d for d in moments_of_state if not is_half_dtype(d)))
            params, kept = updates, None
    requested = step.asked_for(new_updates) if step.asked else ()
    return cast_updates(new_updates, updates, params, kept, requested)
