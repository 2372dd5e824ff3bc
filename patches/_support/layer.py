"""Run one transformation of stock as all patches of its function ask, in one update.

``promotion`` says how the transformation keeps its dtypes: see ``keep_dtypes.py``. Other patches
run it in float32, where a leaf is too narrow: see :class:`InFloat32`. The innermost patch rebuilds
the transformation, and each patch above adds what it asks for to that layer.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp

from ..._contract.dtypes import (
    PyTree,
    all_dtypes,
    cast,
    cast_all,
    cast_like,
    dtype_of,
    dtypes_in,
    is_half_dtype,
    leaves,
    strip_weak_type,
    tree_map,
    unflatten_like,
)
from ..._contract.float32 import dtypes_in_float32
from ..._contract.kinds import promote_initial_state
from ..._contract.moments import round_moments, roundings_of, second_moments
from ..._contract.promotion import keep_present_mode
from ..._contract.rounding import round_leaf
from ..._contract.signatures import is_of_dtype, positional_names
from ..._contract.state import cast_back
from ..._contract.updates import Step, kept_like, requested_dtypes, update_dtypes
from ..._tally import NO_PATCH, Tally, counting, current
from .rebuild import Call, Promotes, call_of, count_casts, link_of, parts_of, rebuild
from .stock_dtypes import (
    has_function,
    promote_as_stock,
    promotes_half,
    start_as_stock,
)

if TYPE_CHECKING:
    from ..._engine.patch import Stock


@functools.cache
def is_float16(dtype: Any) -> bool:
    """Check for float16, which has too few exponents; bfloat16 has enough."""
    return bool(dtype == jnp.float16)


@functools.cache
def is_bfloat16(dtype: Any) -> bool:
    """Check for bfloat16, which has too few digits for small steps."""
    return bool(dtype == jnp.bfloat16)


@dataclasses.dataclass(eq=False, repr=False)  # Cheaper to import than a whole one.
class InFloat32:
    """A replacement that runs stock in float32 where the dtypes are too narrow.

    The state keeps its dtypes. An update is as wide as its gradient, its param and what the user
    asked for, as in stock. Where no leaf of gradients, params and moments is narrow, stock runs
    unchanged.

    Attributes:
      is_narrow: whether leaves of a dtype have to be widened.
      wide: if given, lists the fields that a new state of a class has in float32.
      tally: of the patch that runs.
    """

    is_narrow: Callable[[Any], bool]
    wide: Callable[[type], tuple[str, ...]] | None = None
    tally: Tally = NO_PATCH

    def __call__(self, stock: Stock, *args: Any, **kwargs: Any) -> Any:
        """Build stock's transformation, to be run in float32."""
        return add_layer(stock, args, kwargs, self._add_to)

    def _add_to(self, layer: Layer) -> None:
        layer.widenings = (dataclasses.replace(self, tally=current()), *layer.widenings)


STARTS_ABOVE_ZERO = frozenset(
    {"scale_by_yogi", "scale_by_rms", "scale_by_stddev", "scale_by_rss", "scale_by_cocob"}
)
"""Functions with an average or a sum that starts above zero, for some arguments at least."""


@dataclasses.dataclass(eq=False, repr=False)  # Cheaper to import than a whole one.
class Layer:
    """What the patches of a function ask for.

    Attributes:
      tx: the transformation to run, most often stock's own.
      requested: dtypes that the user asked for by arguments.
      build: the call that returned ``tx``.
      keep: a ``KeepDtypes``: how ``tx`` keeps its dtypes; None if ``promotion`` is off.
      tally: of the patch that asks for ``keep``.
      widenings: an ``InFloat32`` for each other patch.
    """

    tx: Any
    requested: tuple[Any, ...]
    build: functools.partial[Any]
    keep: Any = None
    tally: Tally = NO_PATCH
    widenings: tuple[InFloat32, ...] = ()

    def rebuild(self, call: Call) -> Any:
        """Return the transformation; ``call`` of optax returns it too."""
        arguments = (*self.build.args, *self.build.keywords.values())
        self._has_functions = has_function(*arguments)
        # With ``mu_dtype`` stock would round to nearest, before the moments are rounded here.
        self._narrow = set(filter(is_half_dtype, self.requested))
        self._exact = _without_half_dtypes(self.build) if self._narrow else self.build
        self._starts_wide = promotes_half(*arguments)
        # Whether stock's updates are wider than half-precision gradients and params.
        self._promotes = self._starts_wide or bool(self.keep and self.keep.promotes)
        where: Promotes = "everywhere" if self._promotes else "nowhere"
        return rebuild(self.tx, call, self.update, self.init, promotes=where, layer=self)

    def init(self, params: PyTree) -> Any:
        """Start in dtypes that a step keeps."""
        state = self.tally.run(self._start, params)
        acting = self._acting(state, params)
        return acting[0].tally.run(self._widen_start, acting, state, params) if acting else state

    def _start(self, params: PyTree) -> Any:
        keep = self.keep
        if keep is None:
            return self.tx.init(params)
        run = functools.partial(keep.run, link_of(self.tx))
        state = promote_initial_state(run, keep.start(self.tx, params), params)
        if keep.has_one_dtype or self._starts_wide:
            state = start_as_stock(self.tx, state, params)
        return strip_weak_type(state)

    def _widen_start(self, acting: list[Any], state: Any, params: PyTree) -> Any:
        """Widen fields, and round other initial values: eps is 0 in float16.

        One number tells them all. To start the whole state in float32 would take four times the
        memory of stock.
        """
        if self._starts_wide:
            state = start_as_stock(self.tx, state, params)
        at_zero = self.build.func.__name__ not in STARTS_ABOVE_ZERO
        wide = self._wide_fields(state)
        one = None if at_zero else self._start(jnp.zeros((1,), jnp.float32))

        def start(leaf: Any, name: str) -> Any:
            if not any(widening.is_narrow(dtype_of(leaf)) for widening in acting):
                return leaf
            dtype = jnp.float32 if name in wide else dtype_of(leaf)
            if one is None:
                return cast(leaf, dtype)
            stored = cast_back(one, one._replace(**{name: jnp.zeros((1,), dtype)}))
            return cast(leaf, dtype) * 0 + getattr(stored, name)[0]

        fields = {
            name: tree_map(functools.partial(start, name=name), getattr(state, name))
            for name in (wide if at_zero else roundings_of(state.__class__))
        }
        return state._replace(**fields)

    def update(
        self, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> Step | tuple[PyTree, PyTree]:
        """Take a step, in float32 where a leaf is narrow."""
        given = wide = (updates, state, params)
        acting = self._acting(state, updates, params)
        if acting:
            try:
                wide = _widen(acting, *given)
            except Exception:  # A pytree node of the user's takes no other dtype.
                acting = []
        step: Callable[..., Step]
        if acting:
            tally, step = acting[0].tally, functools.partial(self._step_in_float32, wide)
        elif self.keep:
            tally, step = self.tally, functools.partial(self._step, self.keep)
        else:
            return link_of(self.tx)(*given, **extra_args)  # type: ignore[no-any-return]
        seen = tally.run(_extra_args, params, extra_args) if extra_args else {}
        taken: Step = tally.run(step, *given, seen)
        return taken if taken.bound is None else tally.run(count_casts, taken)

    def _step(
        self, keep: Any, updates: PyTree, state: Any, params: PyTree, extra_args: Any
    ) -> Step:
        run = functools.partial(link_of(self.tx), **extra_args)
        new_updates, new_state, kept = keep.run(run, updates, state, params)
        bound = keep.bound(new_updates, updates, params, state, self.requested)
        if kept and keep.has_one_dtype:  # Else stock itself has promoted the state.
            state = promote_as_stock(self.build, updates, state, params, extra_args)
        new_state = cast_back(new_state, state) if kept else new_state
        return Step(new_updates, new_state, bound, self.requested)

    def _step_in_float32(
        self, wide: Any, updates: PyTree, state: Any, params: PyTree, extra_args: Any
    ) -> Step:
        build, exact = self.build, self._exact
        run = link_of(exact() if self._narrow else self.tx)
        if self._has_functions:
            from .user_functions import Recorded, replace_functions  # Few programs need them.

            users_leaves = leaves((updates, state, params))
            recorded = Recorded(dict(zip(map(id, leaves(wide)), users_leaves)))
            run = link_of(replace_functions(exact, recorded.note)())
            build = replace_functions(build, recorded.repeat)
        run = functools.partial(run, **extra_args)
        if self.keep and dtypes_in_float32(wide[1], wide[0], wide[2], extra_args) is None:
            run = functools.partial(self.keep.run, run)
        new_updates, new_state, *_ = run(*wide)
        like, kept, asked = params, None, self.requested
        if params is None:  # A moment that is wide by a patch alone tells nothing.
            kept = state._replace(**dict.fromkeys(self._wide_fields(state), ()))
            if not kept_like(kept, updates):  # Gradients and moments stand in for the params.
                like, asked = updates, (*asked, *dtypes_in(_moments_of(kept)))
        bound = update_dtypes(new_updates, updates, like, kept, asked)
        if bound is not None and not self._promotes:
            new_updates = unflatten_like(new_updates, map(round_leaf, leaves(new_updates), bound))
            bound = None
        # The user's subclass of a state: stock returns its own class.
        held = type(new_state)(*promote_as_stock(build, updates, state, params, extra_args))
        new_state = cast_back(round_moments(new_state, held, updates), held)
        return Step(new_updates, new_state, bound, self.requested)

    def _acting(self, state: Any, *trees: PyTree) -> list[Any]:
        """List the widenings that have something to do."""
        dtypes = dtypes_in((_moments_of(state), trees)) if self.widenings else set()
        dtypes |= self._narrow
        return [widening for widening in self.widenings if any(map(widening.is_narrow, dtypes))]

    def _wide_fields(self, state: Any) -> set[str]:
        return {name for w in self.widenings if w.wide for name in w.wide(state.__class__)}


def _moments_of(state: Any) -> list[PyTree]:
    return [getattr(state, name, None) for name in second_moments(state.__class__)]


def add_layer(
    stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any], add: Callable[[Layer], None]
) -> Any:
    """Return stock's transformation, with what a patch adds to the layer of the patches below."""
    build = functools.partial(stock, *args, **kwargs)
    tx = build()
    parts = parts_of(tx)
    below = parts and parts.layer
    # Stock's function may return what another one builds.
    if below and below.build.func.__qualname__ == stock.__qualname__:
        add(below)
        return tx
    layer = Layer(tx, requested_dtypes(stock, args, kwargs), build)
    add(layer)
    return layer.rebuild(call_of(stock, args, kwargs))


def _without_half_dtypes(build: functools.partial[Any]) -> functools.partial[Any]:
    """Return the call of stock without the half-precision dtypes among its arguments."""
    names = positional_names(build.func)

    def replaced(name: str, value: Any) -> Any:
        is_asked = value is not None and is_of_dtype(name)
        return None if is_asked and is_half_dtype(jax.dtypes.canonicalize_dtype(value)) else value

    args = map(replaced, names, build.args)
    by_name = {name: replaced(name, value) for name, value in build.keywords.items()}
    return functools.partial(build.func, *args, **by_name)


def _widen(acting: list[Any], *trees: PyTree) -> Any:
    flat = leaves(trees)
    dtypes = all_dtypes(flat)
    for widening in acting:
        narrow = [i for i, dtype in enumerate(dtypes) if widening.is_narrow(dtype)]
        wide = widening.tally.run(cast_all, [flat[i] for i in narrow], jnp.float32)
        for i, leaf in zip(narrow, wide):
            flat[i] = leaf
    return unflatten_like(trees, flat)


def _extra_args(params: PyTree, extra_args: dict[str, Any]) -> dict[str, Any]:
    """Let the user's functions run in the user's mode, and an objective see the user's dtypes."""
    found = {n: keep_present_mode(v) if callable(v) else v for n, v in extra_args.items()}
    objective: Any = found.get("obj_fn")

    def cast_first(wide: PyTree, *args: Any, **kwargs: Any) -> Any:
        return objective(cast_like(wide, params), *args, **kwargs)

    return {**found, "obj_fn": counting(cast_first)} if objective else found
