"""Say what a transformation of optax runs: as stock, in a step on copies, and for a trace."""

from __future__ import annotations

import contextvars
import functools
import inspect
import sys
from typing import Any, Callable

import jax
import numpy as np

from ..._contract.dtypes import PyTree, cast, is_array, is_half_dtype, is_real, is_weak
from ..._contract.signatures import is_of_dtype
from ..._contract.widths import compute_dtype
from ..._contract.x64 import is_x64, without_x64
from .closures import (
    arguments_in,
    builder_of,
    is_of_optax,
    is_users_function,
    with_arguments,
)
from .lifts import Asking, merged
from .links import is_transformation, links_of, map_links, with_links, with_parts
from .rebuild import lifting_of
from .users import STEP, Step, as_the_user_sees


class Lifting:
    """A transformation of stock, and what the patches of its builder ask for.

    Attributes:
      plain: the transformation, as stock builds it.
      tx: the same, but for what patches replace in any dtype.
      asked, builder, opted_out: see :class:`Asking`.
      links: the updates of the transformations inside.
      inside: those of them that are lifted.
      hides: whether what is inside asks for nothing: stock casts it back, or it is optax's default.
      requested: dtypes that the user asked for by arguments.
      narrow: the dtypes of which stock is given float32 copies, with those of the links.
      after: the dtypes of the state after a step of stock, as far as they were looked at.
      narrow_requested: the narrow dtypes that the user asked for.
      is_once: whether stock's own update may run in a step: each link finds out that one is on.
      every: what patches ask for, here and inside.
      users: the updates inside that are not lifted.
      fits: whether arguments may be wider than the leaves.
    """

    def __init__(self, tx: Any, asking: Asking) -> None:
        self.builder, asked, self.opted_out, requested = asking
        self.asked, builder = asked, asking.builder
        self.after: dict[Any, Any] = {}
        self.all = asks = merged(asked)
        self.starts_links = asks.combines or not builder
        self.links: list[Any] = []
        self.arguments: dict[str, Any] = {}
        if not builder:
            self.links = [tx.update]
        elif asks.combines or asks.around_another:
            self.links = links_of(builder, tx.update)
        else:
            self.arguments = dict(arguments_in(builder, *map(inspect.unwrap, tx)))
        self.plain, self.tx = tx, self._changed(tx) if asks.change else tx
        self.hides = asks.like_grads or requested is not None
        found = list(map(lifting_of, self.links))
        self.inside: list[Lifting] = list(filter(None, found))
        self.users = [link for link, lifting in zip(self.links, found) if not lifting]
        self.requested = requested or ()
        if self.arguments:
            self.requested = self._find_requested()
        self.narrow_requested = frozenset(filter(is_half_dtype, self.requested))
        self.is_once = asks.calls_links
        self.narrow, self.integers, self.one_dtype = asks.narrow, asks.integers, asks.one_dtype
        self.every = asked
        if not all(map(_runs_in_step, self.users)):
            self.is_once = False
        for link in self.inside:
            self.narrow |= link.narrow
            self.narrow_requested |= link.narrow_requested
            self.integers |= link.integers
            self.one_dtype |= link.one_dtype
            self.every = self.every + link.every
        self.fits = asks.fits_arguments and not self._has_weak_arguments()

    def _changed(self, tx: Any) -> Any:
        for ask, tally in self.asked:
            tx = ask.change(tx, self.arguments, tally) if ask.change else tx
        return tx

    def built_with(self, change: Callable[[str, Any], Any]) -> Any:
        """Return the transformation, as if it were built with other arguments."""
        init, update = (with_arguments(self.builder, part, change) for part in self.plain)
        return self._changed(self.plain._replace(init=init, update=update))

    def _has_weak_arguments(self) -> bool:
        """Check that all arguments are like Python numbers, and promote nothing."""
        values = self.arguments.values()
        return all(map(is_weak, values)) and not any(
            is_users_function(value) for value in values if callable(value)
        )

    def _find_requested(self) -> tuple[Any, ...]:
        given = [x for n, x in self.arguments.items() if x is not None and "dtype" in n]
        if not given:
            return ()
        default = _defaults_of(self.tx.update.__module__, self.builder)
        dtypes = (jax.dtypes.canonicalize_dtype(x) for x in given if x not in default)
        return tuple(dict.fromkeys(dtypes))

    def wide_fields(self, state: type, dtype: Any = None) -> set[str]:
        """List the fields that a new state of a class has in float32, here and inside."""
        own = self.all.wide(state, self.requested, dtype) if self.all.wide else ()
        return set(own).union(*(link.wide_fields(state, dtype) for link in self.inside))

    @functools.cached_property
    def widens(self) -> bool:
        """Whether a new state may have such fields."""
        return bool(self.all.wide) or any(link.widens for link in self.inside)

    def run_stock(self, /, *args: Any, **extra_args: Any) -> Any:
        """Run stock's own update, as in a float32 problem. Each link inside does so too."""
        if not self.inside:
            return self.tx.update(*args, **extra_args)
        token = AS_STOCK.set(self.within)
        try:
            return self.tx.update(*args, **extra_args)
        finally:
            AS_STOCK.reset(token)

    @functools.cached_property
    def within(self) -> frozenset[Lifting]:
        """The transformations inside, and inside of these."""
        return frozenset(self.inside).union(*(link.within for link in self.inside))

    @functools.cached_property
    def exact(self) -> Callable[..., Any]:
        """What runs in a step on copies."""
        if not self.links:
            # In one call: inject_hyperparams builds a transformation in each step.
            may_call = [x for x in self.arguments.values() if callable(x) or hasattr(x, "update")]
            if not self.requested and not may_call:
                return self.tx.update  # type: ignore[no-any-return]
            # With ``mu_dtype`` stock would round to nearest, before the moments are rounded here.
            return self.built_with(self._as_in_a_step).update  # type: ignore[no-any-return]

        return self._with_links(link_in_step, _seen)

    @functools.cached_property
    def traced(self) -> Callable[..., Any]:
        """What stock would run, without the user's code, for a trace of its dtypes."""
        if not self.links:
            return self.built_with(_as_known).update  # type: ignore[no-any-return]

        def change(link: Any) -> Callable[..., Any]:
            found = lifting_of(link)
            return found.traced if found else _pass

        return self._with_links(change)

    def _with_links(
        self, change: Callable[[Any], Any], other: Callable[[Any], Any] = lambda value: value
    ) -> Callable[..., Any]:
        if not self.builder:
            return change(self.tx.update)  # type: ignore[no-any-return]
        update = with_links(self.builder, self.plain.update, change, other)
        return self._changed(self.plain._replace(update=update)).update  # type: ignore[no-any-return]

    def step(
        self, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        """Take a step inside of one that an update around this one has lifted."""
        step = STEP.get()
        assert step is not None
        before = dict(step.asked) if self.hides else None
        if self.all.inner:
            result = self._step_after_inner(step, (updates, state, params), extra_args)
        elif self.links:
            update = self.tx.update if self.is_once and "exact" not in vars(self) else self.exact
            result = update(updates, state, params, **extra_args)
        else:
            update = self._fitted(step) if self.fits and is_x64() else self.exact
            update = functools.partial(update, **extra_args)
            given = updates, step.lift(state, numbers=False), params
            run = functools.partial(without_x64, update) if self.all.in_32_bits else update
            result = run(*given)
        new_updates, new_state, *_ = result
        if before is not None:
            step.asked = before
        if self.requested:
            step.ask(new_updates, self.requested)
        return new_updates, new_state

    def _step_after_inner(
        self, step: Step, given: tuple[PyTree, Any, PyTree], extra_args: dict[str, Any]
    ) -> tuple[PyTree, Any]:
        """Take a step of the transformation inside, and then one of stock with its updates.

        In the user's mode: stock may have to run in 32-bit mode.
        """
        updates, state, params = given
        name, field = self.all.inner
        inside, after = link_in_step(self.links[0])(
            updates, getattr(state, field), params, **extra_args
        )

        def argument(of: str, value: Any) -> Any:
            fitted = _no_wider_than(step.widest, value) if self.fits and is_x64() else value
            return with_parts(value, update=lambda *_, **__: (inside, ())) if of == name else fitted

        own = step.lift(state._replace(**{field: ()}), numbers=False)
        run = self.built_with(argument).update
        new_updates, new_state = without_x64(run, updates, own, params)
        return new_updates, new_state._replace(**{field: after})

    def _fitted(self, step: Step) -> Callable[..., Any]:
        """Return what runs, with arguments that are no wider than the leaves."""
        # lax.select refuses a limit that is wider than its gradients, whatever the params.
        widest = compute_dtype(step.grads) if self.all.like_grads else step.widest
        fitted = self.built_with(lambda n, v: _no_wider_than(widest, self._as_in_a_step(n, v)))
        return fitted.update  # type: ignore[no-any-return]

    def _as_in_a_step(self, name: str, value: Any) -> Any:
        """Return an argument as stock is given it in a step on copies."""
        if value is not None and is_of_dtype(name):
            return None if is_half_dtype(jax.dtypes.canonicalize_dtype(value)) else value
        if is_transformation(value):  # Such as an estimator of the user's.
            return map_links(link_in_step, value)
        return _seen(value)


AS_STOCK: contextvars.ContextVar[frozenset[Lifting]] = contextvars.ContextVar(
    "as_stock", default=frozenset()
)
"""The links of the update around this code, if it runs as stock in this thread."""


def link_in_step(link: Any) -> Callable[..., Any]:
    """Return what runs of a link in a step. One of the user's is given the user's leaves."""
    is_lifted = lifting_of(link) is not None  # Then it finds out that a step is on.
    return link if is_lifted or _runs_in_step(link) else as_the_user_sees(link, is_link=True)


def _no_wider_than(widest: Any, value: Any) -> Any:
    """Cast a float64 argument, or the value of a schedule, to the widest dtype of the leaves.

    In 32-bit mode a float64 of NumPy is as good as a float32.
    """
    if is_users_function(value):
        return lambda *args, **kwargs: _no_wider_than(widest, value(*args, **kwargs))
    if isinstance(value, float) and value == 0:
        return float(value)  # NumPy's float64 is one. Stock skips such a decay, and 0 * inf is nan.
    if is_weak(value) or not is_array(value) or not is_real(value):
        return value
    return cast(value, widest) if value.dtype.itemsize > widest.itemsize else value


def _runs_in_step(link: Any) -> bool:
    """Check for an update without a function or part of the user's, such as that of identity."""
    if not inspect.isfunction(link) or not is_of_optax(link):  # A method is of a MultiSteps.
        return False
    values = [value for _, value in arguments_in(builder_of(link), link)]
    return not any(is_users_function(v) or is_transformation(v) for v in values)


@functools.cache
def _defaults_of(module: str, builder: str) -> list[Any]:
    """List the default dtypes of a function of optax, for which nobody asked."""
    function = getattr(sys.modules[module], builder, None)
    parameters = inspect.signature(function).parameters.values() if function else ()
    return [p.default for p in parameters if is_of_dtype(p.name)]


def _seen(value: Any) -> Any:
    return as_the_user_sees(value) if is_users_function(value) else value


def known_schedule(*_: Any, **__: Any) -> Any:
    """Stand for a schedule of the user, which does not run: those of optax return a float32."""
    return np.zeros((), np.float32)


def _as_known(_: str, value: Any) -> Any:
    return known_schedule if is_users_function(value) else value


def _pass(updates: Any, state: Any, params: Any = None, **_: Any) -> Any:
    """Stand for a transformation of the user's."""
    del params
    return updates, state
