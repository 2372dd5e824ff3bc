"""Lift once: the update that the user calls gives stock wide copies, and casts back at the end.

What the user calls is the update of a chain, or of one transformation. It casts gradients and
params to float32 where they are too narrow for stock, and runs stock, with all links of the chain.
Then it rounds the moments and casts the state back, and bounds the updates: once, in ``_finish``.
A link inside runs as stock runs it, on wide copies of its own state. What is not lifted, such as a
transformation, a mask or an objective of the user's, sees the user's leaves: ``users.py``.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Callable

import jax
import numpy as np

from ..._contract.dtypes import (
    FLOATS,
    PyTree,
    all_dtypes,
    dtypes_in,
    have_same_dtypes,
    is_half_dtype,
    leaves,
    same_structure,
    strong_dtypes,
    unflatten_like,
)
from ..._contract.float32 import dtypes_in_float32
from ..._contract.master_weights import requested_by
from ..._contract.moments import moments
from ..._contract.promotion import mode_of_promotion, standard_promotion
from ..._contract.signatures import positional_names
from ..._contract.state import cast_back
from ..._contract.steps import counted, note
from ..._contract.updates import cast_to_limits, limits, subtrees_like
from ..._contract.widths import compute_dtype
from ..._contract.x64 import is_x64, without_x64
from .arguments import no_wider_than
from .lifting import Lifting, as_in_a_step
from .lifts import NOTHING, Asking
from .range import FLOAT16, widen_range
from .rebuild import Call, accept_by_name, copy_shared_arrays, in_place_of
from .start import start
from .users import STEP, Step, as_the_user_sees, in_step

if TYPE_CHECKING:
    from collections.abc import Iterable

_FLOAT32 = np.dtype(np.float32)

Trees = tuple[PyTree, Any, PyTree]
"""Gradients, state and params."""


def lift(tx: Any, call: Call, asking: Asking) -> Any:
    """Return a transformation of stock with an ``init`` and an ``update`` that lift it.

    Args:
      tx: the transformation, as stock builds it.
      call: of optax, which returns it.
      asking: what patches ask for.
    """
    lifting = _Lifting(tx, asking)
    if lifting.all.combines and not lifting.is_needed:
        return _noting(tx, call)  # There is nothing to lift.
    passes = lifting.passes

    def init_fn(params: PyTree) -> Any:
        return copy_shared_arrays(lifting.init(params), params)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if passes:
            given = strong_dtypes(updates)
            floats = given is not None and FLOATS.issuperset(given)
            if floats and ("params" not in passes or strong_dtypes(params) == given):
                return lifting.tx.update(updates, state, params, **extra_args)  # type: ignore[no-any-return]
        if STEP.get() is not None:  # An update around this one has lifted.
            return lifting.step(updates, state, params, **extra_args)
        dtypes = dtypes_in_float32(state, updates, params, extra_args)
        if dtypes is None:
            return lifting.take((updates, state, params), extra_args)
        new_updates, new_state = lifting.stock(updates, state, params, **extra_args)
        # User-defined code inside, such as a schedule, may return any dtype.
        if new_state is not state and strong_dtypes(new_state) != dtypes:
            new_state = cast_back(new_state, state)
        return new_updates, new_state

    named = accept_by_name(positional_names(tx.update), update_fn)
    update = in_place_of(tx.update, named, call, operator.attrgetter("update"))
    update.__wrapped__.lifting = lifting
    init = in_place_of(tx.init, init_fn, call, operator.attrgetter("init"))
    return tx._replace(init=init, update=update)


def _noting(tx: Any, call: Call) -> Any:
    """Return a transformation that notes the step of its updates, and does nothing else."""

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        new_updates, new_state = tx.update(updates, state, params, **extra_args)
        if STEP.get() is None:
            note(new_updates, updates, state, params)
        return new_updates, new_state

    named = accept_by_name(positional_names(tx.update), update_fn)
    return tx._replace(update=in_place_of(tx.update, named, call, operator.attrgetter("update")))


def _also(requested: Any, dtypes: Iterable[Any], updates: PyTree) -> list[tuple[Any, ...]]:
    """Add dtypes to those that were asked for in each update."""
    rows = requested or [()] * len(leaves(updates))
    return [(*row, *dtypes) for row in rows]


class _Lifting(Lifting):
    """Take the steps of a transformation."""

    def init(self, params: PyTree) -> Any:
        """Start in dtypes that a step keeps."""
        # Not in the first step: that is timed, and may be the only one.
        _ = self.stock if dtypes_in(params) <= {_FLOAT32} else self.exact
        return start(self, params)

    def step(
        self, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        """Take a step inside of one that is lifted."""
        step = STEP.get()
        assert step is not None
        if self.all.inner:
            new_updates, new_state = self._step_after_inner(
                step, (updates, state, params), extra_args
            )
        elif self.links:
            before = dict(step.asked)
            update = self.tx.update if self.is_once and "exact" not in vars(self) else self.exact
            new_updates, new_state = update(updates, state, params, **extra_args)
            if self.hides:
                step.asked = before
        else:
            update = self._fitted(step) if self.fits and is_x64() else self.exact
            update = functools.partial(update, **extra_args)
            given = updates, step.lift(state, numbers=False), params
            run = functools.partial(without_x64, update) if self.all.in_32_bits else update
            new_updates, new_state, *_ = run(*given)
        if self.requested:
            step.ask(new_updates, self.requested)
        return new_updates, new_state

    def _step_after_inner(
        self, step: Step, given: Trees, extra_args: dict[str, Any]
    ) -> tuple[PyTree, Any]:
        """Take a step of the transformation inside, and then one of stock with its updates.

        In the user's mode: stock may have to run in 32-bit mode.
        """
        updates, state, params = given
        name, field = self.all.inner
        inside, after = self.link_in_step(self.links[0])(
            updates, getattr(state, field), params, **extra_args
        )

        def argument(of: str, value: Any) -> Any:
            fitted = no_wider_than(step.widest, value) if self.fits and is_x64() else value
            return value._replace(update=lambda *_, **__: (inside, ())) if of == name else fitted

        own = step.lift(state._replace(**{field: ()}), numbers=False)
        run = self.built_with(argument).update
        new_updates, new_state = without_x64(run, updates, own, params)
        return new_updates, new_state._replace(**{field: after})

    def _fitted(self, step: Step) -> Callable[..., Any]:
        """Return what runs, with arguments that are no wider than the leaves."""
        # lax.select refuses a limit that is wider than its gradients, whatever the params.
        widest = compute_dtype(step.grads) if self.all.like_grads else step.widest
        fitted = self.built_with(lambda n, v: no_wider_than(widest, as_in_a_step(n, v)))
        return fitted.update  # type: ignore[no-any-return]

    def take(self, given: Trees, extra_args: dict[str, Any]) -> tuple[PyTree, Any]:
        """Take a step on copies, which no update around this one has lifted."""
        updates, state, params = given
        dtypes = dtypes_in((updates, params)) | (self.narrow_requested & self.narrow)
        if self.narrow.isdisjoint(dtypes):
            dtypes |= dtypes_in(self._moments_of(state))
        acting = [tally for ask, tally in self.every if not ask.narrow.isdisjoint(dtypes)]
        tallies = acting or [tally for ask, tally in self.every if ask.keeps]
        if not tallies:
            return self.stock(updates, state, params, **extra_args)  # type: ignore[no-any-return]
        like = updates if params is None else params
        in_half = bool(acting) and any(map(is_half_dtype, all_dtypes(like)))
        for tally in tallies:
            tally.reach(in_half=in_half)
        if FLOAT16 in all_dtypes(state):
            state = widen_range(self.after, self.traced, given, extra_args)
        dtype = compute_dtype((updates, params)) if self.one_dtype else None
        mode = mode_of_promotion()
        step = Step(updates, params, self.narrow, dtype, self.integers, mode)
        try:
            wide_updates, wide_params = step.lift((updates, params))
            wide = wide_updates, state, wide_params
        except Exception:  # A pytree node of the user's takes no other dtype.
            step, wide = Step(updates, params, NOTHING, None, False, mode), given
        users = {n: as_the_user_sees(v) if callable(v) else v for n, v in extra_args.items()}
        with standard_promotion(), counted(state, given):
            new_updates, new_state = in_step(step, self.step, *wide, **users)
            result = self._finish(step, new_updates, new_state, (updates, state, params))
        if self.all.inner:
            step.free(keep=(given, result))
        return result

    def _finish(
        self, step: Step, new_updates: PyTree, new_state: Any, given: Trees
    ) -> tuple[PyTree, Any]:
        """Round the moments, cast the state back and bound the updates: the one place for all."""
        updates, state, params = given
        if not same_structure(new_state, state) and len(leaves(new_state)) == len(leaves(state)):
            state = unflatten_like(new_state, leaves(state))  # In the user's subclass of a state.
        new_updates = self._bound(step, new_updates, given)
        new_state = cast_back(new_state, state, updates)
        note(new_updates, updates, state, params)
        return new_updates, new_state

    def _bound(self, step: Step, new_updates: PyTree, given: Trees) -> PyTree:
        updates, state, params = given
        if have_same_dtypes(new_updates, updates):
            return new_updates
        kept, requested = None, step.asked_for(new_updates) if step.asked else ()
        if self.all.like_grads:
            params = updates
        elif params is None:  # What the state keeps for the params tells their dtypes.
            kept = self._without_wide_fields(state) if self.widens else state
            if step.lent and not subtrees_like(kept, updates):
                wide = {d for d in dtypes_in(self._moments_of(kept)) if not is_half_dtype(d)}
                params, kept = updates, None
                requested = _also(requested, wide, new_updates)
        copies = requested_by(state)
        if copies:
            requested = _also(requested, copies, new_updates)
        return cast_to_limits(new_updates, limits(new_updates, updates, params, kept, requested))

    def _without_wide_fields(self, state: PyTree) -> PyTree:
        """Leave out moments that are wide by a patch alone, which tell nothing."""

        def fields(node: Any) -> set[str]:
            return self.wide_fields(type(node)) if hasattr(node, "_fields") else set()

        def without(node: Any) -> Any:
            names = fields(node)
            return node._replace(**dict.fromkeys(names, ())) if names else node

        nodes = jax.tree_util.tree_leaves(state, is_leaf=lambda node: bool(fields(node)))
        return list(map(without, nodes))

    def _moments_of(self, state: PyTree) -> list[PyTree]:
        """List the moments in all states."""
        found: list[PyTree] = []

        def note(node: Any) -> bool:
            if isinstance(node, tuple):
                found.extend([getattr(node, name, None) for name in moments(type(node))])
            return False

        jax.tree_util.tree_leaves(state, is_leaf=note)
        return found
