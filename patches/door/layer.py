"""Run one transformation of stock as all patches of its function ask, in one update.

``promotion`` says how the transformation keeps its dtypes: see ``keep_dtypes.py``. Other patches
run it in float32, where a leaf is too narrow: see :class:`InFloat32`. The innermost patch rebuilds
the transformation, and each patch above adds what it asks for to that layer.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from typing import Any, Callable

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
    is_weak,
    leaves,
    strip_weak_type,
    tree_map,
    unflatten_like,
)
from ..._contract.float32 import dtypes_in_float32
from ..._contract.moments import round_moments, roundings_of, second_moments
from ..._contract.promotion import keep_present_mode
from ..._contract.rounding import round_leaf
from ..._contract.signatures import is_of_dtype
from ..._contract.state import cast_back
from ..._contract.updates import Step, limits, subtrees_like
from ..._contract.widths import compute_dtype
from ..._contract.x64 import is_x64
from ..._tally import Tally
from .arguments import no_wider_than
from .closures import arguments_in, is_users_function, with_arguments
from .rebuild import Call, Promotes, link_of, rebuild
from .stock_dtypes import Range, promotes_half, start_as_stock

_UNCOUNTED = Tally()


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
    tally: Tally = _UNCOUNTED

    def add_to(self, layer: Layer, tally: Tally) -> None:
        """Run the transformation of a layer in float32."""
        layer.widenings = (dataclasses.replace(self, tally=tally), *layer.widenings)


STARTS_ABOVE_ZERO = frozenset(
    {"scale_by_yogi", "scale_by_rms", "scale_by_stddev", "scale_by_rss", "scale_by_cocob"}
)
"""Functions with an average or a sum that starts above zero, for some arguments at least."""


@dataclasses.dataclass(eq=False, repr=False)  # Cheaper to import than a whole one.
class Layer:
    """What the patches of a function ask for.

    Attributes:
      tx: the transformation to run, most often stock's own.
      builder: the name of the function of optax that builds it.
      requested: dtypes that the user asked for by arguments; else ``tx`` says so.
      keep: a ``KeepDtypes``: how ``tx`` keeps its dtypes; None if ``promotion`` is off.
      tally: of the patch that asks for ``keep``.
      widenings: an ``InFloat32`` for each other patch.
      ignores_params: whether stock gives an update the dtype of its gradient, whatever its param,
        unless an argument promotes.
      mixes: whether stock promotes all updates of a mixed tree.
      fits_arguments: whether a float64 argument must not make float64 of narrower leaves.
      passes_floats: see :func:`rebuild`.
    """

    tx: Any
    builder: str
    requested: tuple[Any, ...] = ()
    keep: Any = None
    tally: Tally = _UNCOUNTED
    widenings: tuple[InFloat32, ...] = ()
    ignores_params: bool = False
    mixes: bool = False
    fits_arguments: bool = False
    passes_floats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Read the arguments that the functions of stock close over."""
        stock = map(inspect.unwrap, self.tx) if self.builder else ()
        found = arguments_in(self.builder, *stock)
        self.arguments = dict(found)
        arguments = [value for _, value in found]
        asked = [value for name, value in found if is_of_dtype(name) and value is not None]
        if asked:
            default = _defaults_of(self.tx.update.__module__, self.builder)
            asked = [value for value in asked if value not in default]
            dtypes = dict.fromkeys(map(jax.dtypes.canonicalize_dtype, asked))
            self.requested = (*self.requested, *dtypes)
        self._has_functions = any(map(is_users_function, filter(callable, arguments)))
        self._starts_wide = promotes_half(*arguments)

    @property
    def has_weak_arguments(self) -> bool:
        """Whether all arguments are like Python numbers, and promote nothing."""
        return not self._has_functions and all(map(is_weak, self.arguments.values()))

    def rebuild(self, call: Call) -> Any:
        """Return the transformation; ``call`` of optax returns it too."""
        # With ``mu_dtype`` stock would round to nearest, before the moments are rounded here.
        self._narrow = set(filter(is_half_dtype, self.requested))
        self._exact = self.tx.update
        if self._narrow:
            self._exact = with_arguments(self.builder, self._exact, _no_half_dtype)
        self._keep_range = Range(self.tx.update)
        # Whether stock's updates are wider than half-precision gradients and params.
        self._promotes = self._starts_wide or bool(self.keep and self.keep.promotes)
        mixes: Promotes = "in mixed trees" if self.mixes else "nowhere"
        where: Promotes = "everywhere" if self._promotes else mixes
        always = bool(self.keep and self.keep.also_in_float32)
        return rebuild(
            *(self.tx, call, self.update, self.init),
            also_in_float32=always,
            promotes=where,
            passes_floats=self.passes_floats,
        )

    def init(self, params: PyTree) -> Any:
        """Start in dtypes that a step keeps."""
        state = self._start(params)
        acting = self._acting(state, params)
        if self.keep and self.keep.also_in_float32:
            self.tally.reach()
        if not acting:
            return state
        for widening in acting:
            widening.tally.reach()
        return self._widen_start(acting, state, params)

    def _start(self, params: PyTree) -> Any:
        keep = self.keep
        if keep is None:
            return self.tx.init(params)
        state = keep.start(self.tx, params)
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
        at_zero = self.builder not in STARTS_ABOVE_ZERO
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

    def update(self, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any) -> Step:
        """Take a step, in float32 where a leaf is narrow."""
        if not (self.keep and self.keep.also_in_float32):  # These run in one dtype.
            state = self._keep_range(updates, state, params, extra_args)
        inputs = wide = (updates, state, params)
        acting = self._acting(state, updates, params)
        if acting:
            try:
                wide = _widen(acting, *inputs)
            except Exception:  # A pytree node of the user's takes no other dtype.
                acting = []
        users = _extra_args(params, extra_args) if extra_args else {}
        if acting:
            like = updates if params is None else params
            in_half = any(map(is_half_dtype, all_dtypes(like)))
            for widening in acting:
                widening.tally.reach(in_half=in_half)
            return self._step_in_float32(wide, *inputs, users)
        if self.keep:
            self.tally.reach()
            return self._step(self.keep, *inputs, users)
        return Step(*self._fitted(link_of(self.tx), *inputs)(*inputs, **extra_args))

    def _step(
        self, keep: Any, updates: PyTree, state: Any, params: PyTree, extra_args: Any
    ) -> Step:
        link = self._fitted(link_of(self.tx), updates, state, params)
        run = functools.partial(link, **extra_args)
        new_updates, new_state = keep.run(run, updates, state, params)
        exceeded = keep.limits(new_updates, updates, params, state, self.requested)
        return Step(new_updates, cast_back(new_state, state), exceeded, self.requested)

    def _step_in_float32(
        self, wide: Any, updates: PyTree, state: Any, params: PyTree, extra_args: Any
    ) -> Step:
        exact = self._exact
        if self._has_functions:
            users_leaves = leaves((updates, state, params))
            exact = self._with_users_leaves(dict(zip(map(id, leaves(wide)), users_leaves)))
        run = functools.partial(self._fitted(exact, *wide), **extra_args)
        if self.keep and dtypes_in_float32(wide[1], wide[0], wide[2], extra_args) is None:
            run = functools.partial(self.keep.run, run)
        new_updates, new_state, *_ = run(*wide)
        like, moments, requested = params, None, self.requested
        promotes = self._promotes or (self.mixes and len(dtypes_in(updates)) > 1)
        if self.ignores_params and not promotes:
            like = updates
        elif params is None:  # A moment that is wide by a patch alone tells nothing.
            moments = state._replace(**dict.fromkeys(self._wide_fields(state), ()))
            if not subtrees_like(moments, updates):
                # Gradients and moments stand in for the params.
                like, requested = updates, (*requested, *dtypes_in(_moments_of(moments)))
        dtypes = limits(new_updates, updates, like, moments, requested)
        if dtypes is not None and not promotes:
            new_updates = unflatten_like(new_updates, map(round_leaf, leaves(new_updates), dtypes))
            dtypes = None
        # The user's subclass of a state: stock returns its own class.
        before = type(new_state)(*state)
        new_state = cast_back(round_moments(new_state, before, updates), before)
        return Step(new_updates, new_state, dtypes, self.requested)

    def _with_users_leaves(self, users: dict[int, Any]) -> Any:
        """Let the user's functions see the user's leaves: muon's may choose by dtype.

        Args:
          users: the leaves, by the ids of those that stock is given.
        """

        def change(_: str, value: Any) -> Any:
            if not is_users_function(value):
                return value

            def called(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = tree_map(lambda leaf: users.get(id(leaf), leaf), (args, kwargs))
                return value(*args, **kwargs)

            return functools.update_wrapper(called, value)

        return with_arguments(self.builder, self._exact, change)

    def _fitted(self, update: Callable[..., Any], *trees: PyTree) -> Callable[..., Any]:
        """Return stock's update with arguments that are no wider than the leaves."""
        if not (self.fits_arguments and is_x64()):
            return update
        # lax.select refuses a limit that is wider than its gradients, whatever the params.
        widest = compute_dtype(trees[:1] if self.ignores_params else trees)
        return with_arguments(self.builder, update, lambda _, value: no_wider_than(widest, value))

    def _acting(self, state: Any, *trees: PyTree) -> list[Any]:
        """List the widenings that have something to do."""
        dtypes = dtypes_in((_moments_of(state), trees)) if self.widenings else set()
        dtypes |= self._narrow
        return [widening for widening in self.widenings if any(map(widening.is_narrow, dtypes))]

    def _wide_fields(self, state: Any) -> set[str]:
        return {name for w in self.widenings if w.wide for name in w.wide(state.__class__)}


def _moments_of(state: Any) -> list[PyTree]:
    return [getattr(state, name, None) for name in second_moments(state.__class__)]


@functools.cache
def _defaults_of(module: str, builder: str) -> list[Any]:
    """List the default dtypes of a function of optax, for which nobody asked."""
    function = getattr(sys.modules[module], builder, None)
    parameters = inspect.signature(function).parameters.values() if function else ()
    return [p.default for p in parameters if is_of_dtype(p.name)]


def _no_half_dtype(name: str, value: Any) -> Any:
    is_asked = value is not None and is_of_dtype(name)
    return None if is_asked and is_half_dtype(jax.dtypes.canonicalize_dtype(value)) else value


def _widen(acting: list[Any], *trees: PyTree) -> Any:
    flat = leaves(trees)
    dtypes = all_dtypes(flat)
    for widening in acting:
        narrow = [i for i, dtype in enumerate(dtypes) if widening.is_narrow(dtype)]
        wide = cast_all([flat[i] for i in narrow], jnp.float32)
        for i, leaf in zip(narrow, wide):
            flat[i] = leaf
    return unflatten_like(trees, flat)


def _extra_args(params: PyTree, extra_args: dict[str, Any]) -> dict[str, Any]:
    """Let the user's functions run in the user's mode, and an objective see the user's dtypes."""
    found = {n: keep_present_mode(v) if callable(v) else v for n, v in extra_args.items()}
    objective: Any = found.get("obj_fn")

    def cast_first(wide: PyTree, *args: Any, **kwargs: Any) -> Any:
        return objective(cast_like(wide, params), *args, **kwargs)

    return {**found, "obj_fn": cast_first} if objective else found
