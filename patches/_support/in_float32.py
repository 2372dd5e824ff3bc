"""Run the transformations that divide by a moment of the gradients in float32.

``float16_eps``, ``bfloat16_moments``, ``float32_moments`` and ``float32_averages`` share this
module. All stand before ``promotion`` in the catalogue, so they wrap it: ``promotion`` would round
states to nearest.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, NamedTuple

import jax.numpy as jnp

from ..._contract.dtypes import (
    PyTree,
    all_dtypes,
    cast_all,
    cast_like,
    dtype_of,
    dtypes_in,
    half_to_float32,
    leaves,
    tree_map,
    unflatten_like,
)
from ..._contract.moments import roundings_of, second_moments, store
from ..._contract.rounding import round_leaf
from ..._contract.updates import Step, kept_like, requested_dtypes, update_dtypes
from ..._engine.patch import Stock
from ..._tally import THREAD, Tally, counting, current
from .rebuild import Promotes, call_of, link_of, parts_of, rebuild
from .stock_dtypes import Recorded, StockPromotion, promotes_half, start_as_stock

STARTS_ABOVE_ZERO = frozenset(
    {"scale_by_yogi", "scale_by_rms", "scale_by_stddev", "scale_by_rss", "scale_by_cocob"}
)
"""Functions with an average or a sum that starts above zero, for some arguments at least."""


@functools.cache
def is_float16(dtype: Any) -> bool:
    """Check for float16, which has too few exponents; bfloat16 has enough."""
    return bool(dtype == jnp.float16)


@functools.cache
def is_bfloat16(dtype: Any) -> bool:
    """Check for bfloat16, which has too few digits for small steps."""
    return bool(dtype == jnp.bfloat16)


class Widening(NamedTuple):
    """What one patch widens.

    Attributes:
      is_narrow: whether leaves of a dtype have to be widened.
      tally: of the patch.
    """

    is_narrow: Callable[[Any], bool]
    tally: Tally


@dataclasses.dataclass(eq=False, repr=False)  # Cheaper to import than a whole one.
class InFloat32:
    """A replacement that runs stock in float32 where the dtypes are too narrow.

    The state keeps its dtypes. An update is as wide as its gradient, its param and what the user
    asked for, as in stock. Where no leaf of gradients, params and moments is narrow, stock runs
    unchanged. Patches that widen different dtypes of one function share one update.

    Attributes:
      is_narrow: whether leaves of a dtype have to be widened.
      wide: if given, lists the fields that a new state of a class has in float32.
    """

    is_narrow: Callable[[Any], bool]
    wide: Callable[[type], tuple[str, ...]] | None = None

    def __call__(self, stock: Stock, *args: Any, **kwargs: Any) -> Any:  # noqa: PLR0915
        """Build stock's transformation, to be run in float32."""
        tx, requested = stock(*args, **kwargs), requested_dtypes(stock, args, kwargs)
        promotes = any(map(promotes_half, (*args, *kwargs.values())))
        functions = any(map(_is_function, (*args, *kwargs.values())))
        below, widenings = parts_of(tx), (Widening(self.is_narrow, current()),)
        if below and below.widened and not self.wide:
            tx, others = below.widened  # What another patch has built is not needed.
            widenings += others
        link = link_of(tx)
        everywhere = promotes or bool(below and below.promotes == "everywhere")
        where: Promotes = "everywhere" if everywhere else "nowhere"

        def acting(state: Any, *trees: PyTree) -> list[Widening]:
            dtypes = dtypes_in((_moments_of(state), trees))
            return [widening for widening in widenings if any(map(widening.is_narrow, dtypes))]

        promoted, name = StockPromotion(stock, args, kwargs), getattr(stock, "__name__", "")

        def with_functions(
            instead: Callable[[Callable[..., Any]], Callable[..., Any]],
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            """Return the arguments with other functions in place of the user's."""

            def replaced(argument: Any) -> Any:
                return instead(argument) if _is_function(argument) else argument

            by_name = {name: replaced(argument) for name, argument in kwargs.items()}
            return tuple(map(replaced, args)), by_name

        def init_fn(params: PyTree) -> Any:
            state = tx.init(params)
            concerned = acting(state, params)
            if not concerned:
                return state
            return concerned[0].tally.run(start, concerned, state, params)

        def start(concerned: list[Widening], state: Any, params: PyTree) -> Any:
            if promotes:
                state = start_as_stock(tx, state, params)
            if self.wide:
                return self._with_wide_fields(tx, concerned, state, params)
            if name not in STARTS_ABOVE_ZERO:
                return state
            return self._rounded_start(tx, concerned, state)

        def update_fn(updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any) -> Any:
            concerned = acting(state, updates, params)
            if not concerned:
                return link(updates, state, params, **extra_args)
            THREAD.open.append(concerned[0].tally)
            try:
                try:
                    wide = _widen(concerned, updates, state, params)
                except Exception:  # A pytree node of the user's takes no other dtype.
                    return link(updates, state, params, **extra_args)
                objective = extra_args.get("obj_fn")
                if objective is not None:  # What sophia differentiates is given the user's dtypes.
                    extra_args["obj_fn"] = with_params_cast_back(params, objective)
                run, recorded = tx, Recorded()
                if functions:
                    given = dict(zip(map(id, leaves(wide)), leaves((updates, state, params))))
                    given_args, by_name = with_functions(lambda f: recorded.note(_with(given, f)))
                    run = stock(*given_args, **by_name)
                new_updates, new_state = run.update(*wide, **extra_args)
                like, kept = params, None if params is not None else self._kept(state)
                asked = requested
                if kept is not None and not kept_like(kept, updates):
                    like = updates  # Nothing tells: gradients and moments stand in for the params.
                    asked = (*requested, *dtypes_in(_moments_of(kept)))
                dtypes = update_dtypes(new_updates, updates, like, kept, asked)
                if dtypes is not None and not everywhere:
                    rounded = map(round_leaf, leaves(new_updates), dtypes)
                    new_updates = unflatten_like(new_updates, rounded)
                as_stock = promoted
                if functions:
                    again = recorded.repeat()
                    as_stock = StockPromotion(stock, *with_functions(lambda _: again))
                held = as_stock(updates, state, params, extra_args)
                new_state = store(new_state, held, updates)
                return Step(new_updates, new_state, dtypes if everywhere else None, requested)
            finally:
                THREAD.open.pop()

        call = call_of(stock, args, kwargs)
        widened = None if self.wide else (tx, widenings)
        return rebuild(tx, call, update_fn, init_fn, promotes=where, widened=widened)

    def _with_wide_fields(
        self, tx: Any, concerned: list[Widening], state: Any, params: PyTree
    ) -> Any:
        try:
            (wide,) = _widen(concerned, params)
        except Exception:
            return state
        names = self.wide(type(state)) if self.wide else ()
        fields = {name: half_to_float32(getattr(state, name)) for name in names}
        # An initial value may have no exact half.
        return store(tx.init(wide), state._replace(**fields))

    def _rounded_start(self, tx: Any, concerned: list[Widening], state: Any) -> Any:
        """Round initial values by :data:`ROUNDINGS`: eps is 0 in float16.

        One number tells all of them. To start the whole state in float32 would take four times the
        memory of stock.
        """
        fields_of = roundings_of(state.__class__)
        one = tx.init(jnp.zeros((1,), jnp.float32))

        def rounded(leaf: Any, name: str) -> Any:
            if not any(widening.is_narrow(dtype_of(leaf)) for widening in concerned):
                return leaf
            narrow = one._replace(**{name: jnp.zeros((1,), dtype_of(leaf))})
            return leaf * 0 + getattr(store(one, narrow), name)[0]

        fields = {
            name: tree_map(functools.partial(rounded, name=name), getattr(state, name))
            for name in fields_of
        }
        return state._replace(**fields)

    def _kept(self, state: Any) -> Any:
        """Return what tells the dtypes of the params, where the user passes in none."""
        # A moment that is wide by this patch alone tells nothing.
        return state._replace(**dict.fromkeys(self.wide(type(state)) if self.wide else (), ()))


def _moments_of(state: Any) -> list[PyTree]:
    return [getattr(state, name, None) for name in second_moments(state.__class__)]


def _widen(concerned: list[Widening], *trees: PyTree) -> Any:
    flat = leaves(trees)
    dtypes = all_dtypes(flat)
    for widening in concerned:
        narrow = [i for i, dtype in enumerate(dtypes) if widening.is_narrow(dtype)]
        wide = widening.tally.run(cast_all, [flat[i] for i in narrow], jnp.float32)
        for i, leaf in zip(narrow, wide):
            flat[i] = leaf
    return unflatten_like(trees, flat)


def _is_function(argument: Any) -> bool:
    return callable(argument) and not isinstance(argument, type)  # ``jnp.float32`` is a type.


def _with(given: dict[int, Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function of the user's their own leaves: muon's may choose by dtype.

    Args:
      given: by the ids of the leaves that stock is given, those that it would be given.
      function: an argument of stock.
    """

    def with_users_leaves(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(lambda leaf: given.get(id(leaf), leaf), (args, kwargs))
        return function(*args, **kwargs)

    return counting(with_users_leaves)


def with_params_cast_back(params: PyTree, objective: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an objective so that it is given params in the user's dtypes."""

    def cast_first(wide: PyTree, *args: Any, **kwargs: Any) -> Any:
        return objective(cast_like(wide, params), *args, **kwargs)

    return counting(cast_first)
