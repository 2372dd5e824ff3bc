"""Run the transformations that divide by a moment of the gradients in float32.

``float16_eps`` and ``float32_moments`` share this module: one row a transformation, and the
adapter. Both stand before ``promotion`` in the catalogue, so they wrap it: ``promotion`` would
round states to nearest.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Literal, NamedTuple

import jax
import jax.numpy as jnp

from ..._contract.dtypes import (
    REAL,
    PyTree,
    cast,
    cast_like,
    dtype_of,
    half_to_float32,
    is_half,
    kind_of,
    leaves,
    may_cast,
    tree_map,
    unflatten_like,
)
from ..._contract.rounding import round_stochastically
from ..._contract.updates import kept_like, requested_dtypes, update_dtypes
from ..._engine.patch import Patch, Stock
from ..._tally import counting, paused
from . import modules
from .keep_dtypes import same_dtypes
from .rebuild import call_of, rebuild
from .reproduce import all_public

_TINY, _HUGE = 2.0**-24, 65504.0  # The smallest number above zero in float16, and the largest.


def _within(x: Any, limit: float) -> Any:
    """Limit finite numbers; keep infinite ones for the user to see."""
    return jnp.where(jnp.isinf(x), x, jnp.clip(x, -limit, limit))


Rounding = Literal["by turns", "growing", "above zero", "below 256", "above square"]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _to_float16(how: Rounding, x: Any, old: Any, bits: Any) -> Any:
    """Round to float16: what is finite stays so, what is positive stays so.

    A moment that is rounded to zero makes an update too large by orders of magnitude. The
    derivative is that of a cast.

    Args:
      how: "by turns": up in some steps and down in others, so that the mean is right, where each
        step adds less than float16 can. Rounding to nearest would stop there, and rounding up
        would drift up. "growing": to nearest, but what grows does so, where no counter tells one
        step from the next. "above square": to nearest, but no less than the square of ``old``.
      x: what to round.
      old: what it was before this step.
      bits: of this step, from 0 to 2^16 - 1.
    """
    old, rounded = cast(old, x.dtype), x
    if how == "by turns":
        rounded = round_stochastically(x, jnp.float16, bits)
    if how == "growing":
        rounded = jnp.where((x > old) & (x < 2.0**-14), jnp.maximum(x, old + _TINY), x)
    if how == "above square":
        rounded = jnp.maximum(x, jnp.square(old) * (1 + 2.0**-10) + _TINY / 2)
    rounded = jnp.where(x > 0, jnp.maximum(rounded, _TINY), rounded)
    return cast(_within(rounded, 255.0 if how == "below 256" else _HUGE), jnp.float16)


@_to_float16.defjvp
def _straight_through(how: Rounding, primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _to_float16(how, *primals), cast(tangents[0], jnp.float16)


to_float16 = jax.jit(_to_float16, static_argnums=0)  # Traced once a shape, not once a leaf.


ROUNDINGS: dict[str, dict[str, Rounding]] = {
    "ScaleByAdamState": {"nu": "by turns"},
    "ScaleByBeliefState": {"nu": "by turns"},
    "ScaleByNovogradState": {"nu": "by turns"},
    "ScaleByAdemamixState": {"nu": "by turns"},
    "SophiaState": {"nu": "by turns"},
    "ScaleByAdanState": {"n": "by turns"},
    "ScaleBySimplifiedAdEMAMixState": {"n": "by turns"},
    "MadgradState": {"grad_sum_sq": "by turns"},
    "FactoredState": dict.fromkeys(("v_row", "v_col", "v"), "by turns"),
    # Rounding commutes with a maximum. To round by turns would find the highest turn.
    "ScaleByAmsgradState": {"nu": "by turns", "nu_max": "above zero"},
    "ScaleByRmsState": {"nu": "growing"},
    # The variance is a difference of the two: rounded apart, it may be negative.
    "ScaleByRStdDevState": {"mu": "below 256", "nu": "growing"},
    # Sums, which outgrow their rounding. In sm3 ``mu`` is the accumulator, and ``nu`` the momentum.
    "ScaleByRssState": {"sum_of_squares": "above zero"},
    "ScaleBySM3State": {"mu": "above zero"},
    # ``eps`` is less than the smallest number. The rest is exact, or a first moment.
    "COCOBState": {"scale": "above zero"},
}
"""How fields of a state, by the name of its class, are rounded to float16, if not to nearest."""


class MomentTransform(NamedTuple):
    """A transformation to run in float32.

    Attributes:
      name: of the function that builds it.
      modules: that may define that function, newest layout first.
      releases: PEP 440 specifiers of the releases that have it.
      moments: fields of its state that hold second moments, or their inputs.
    """

    name: str
    modules: tuple[str, ...]
    releases: str
    moments: tuple[str, ...] = ("nu",)


MOMENT_TRANSFORMS = (
    MomentTransform("scale_by_adam", modules.TRANSFORM, ">=0.1.2"),
    MomentTransform("scale_by_belief", modules.TRANSFORM, ">=0.1.2"),
    MomentTransform("scale_by_yogi", modules.TRANSFORM, ">=0.1.2"),
    MomentTransform("scale_by_radam", modules.TRANSFORM, ">=0.1.2"),
    MomentTransform("scale_by_rms", modules.TRANSFORM, ">=0.1.2"),
    MomentTransform("scale_by_stddev", modules.TRANSFORM, ">=0.1.2", ("mu", "nu")),
    MomentTransform("scale_by_rss", modules.TRANSFORM, ">=0.1.2", ("sum_of_squares",)),
    MomentTransform("scale_by_sm3", modules.TRANSFORM, ">=0.1.2", ("mu",)),
    MomentTransform(
        "scale_by_factored_rms", modules.FACTORIZED, ">=0.1.2", ("v_row", "v_col", "v")
    ),
    MomentTransform("scale_by_adamax", modules.TRANSFORM, ">=0.1.3"),
    MomentTransform("scale_by_amsgrad", modules.TRANSFORM, ">=0.1.4", ("nu", "nu_max")),
    MomentTransform("scale_by_novograd", modules.TRANSFORM, ">=0.1.4"),
    MomentTransform("scale_by_adadelta", modules.TRANSFORM, ">=0.2.0", ("e_g", "e_x")),
    MomentTransform("scale_by_adan", modules.TRANSFORM, ">=0.2.4", ("n",)),
    MomentTransform("scale_by_acprop", modules.contrib("acprop"), ">=0.2.3"),
    MomentTransform("scale_by_cocob", modules.contrib("cocob"), ">=0.2.3", ()),
    MomentTransform("scale_by_ademamix", modules.contrib("ademamix"), ">=0.2.5"),
    MomentTransform("scale_by_simplified_ademamix", modules.contrib("ademamix"), ">=0.2.5", ("n",)),
    MomentTransform("scale_by_adopt", modules.contrib("adopt"), ">=0.2.5"),
    MomentTransform("scale_by_muon", modules.contrib("muon"), ">=0.2.5", ()),
    MomentTransform("scale_by_sophia", modules.contrib("sophia"), ">=0.2.5"),
    MomentTransform("scale_by_madgrad", modules.contrib("madgrad"), ">=0.2.7", ("grad_sum_sq",)),
)


def available(optax: Any, *names: str) -> dict[str, Any]:
    """Build the named transformations that the installed optax has, for a reproducer."""
    paths = [path for name in names for path in (name, f"contrib.{name}")]
    return {name: build() for name, build in all_public(optax, *paths).items()}


def is_float16(leaf: Any) -> bool:
    """Check whether a leaf is float16, which has too few exponents; bfloat16 has enough."""
    return is_half(leaf) and bool(dtype_of(leaf) == jnp.float16)


@dataclasses.dataclass(eq=False, repr=False)  # Cheaper to import than a whole one.
class InFloat32:
    """A replacement that runs stock in float32 where the dtypes are too narrow.

    The state keeps its dtypes. An update is as wide as its gradient, its param and what the user
    asked for, as in stock. Where no leaf of gradients, params and moments is narrow, stock runs
    unchanged.

    Attributes:
      transform: the transformation to build.
      is_narrow: whether a leaf has to be widened.
      wide_moments: whether a new state has its moments in float32.
    """

    transform: MomentTransform
    is_narrow: Callable[[Any], bool]
    wide_moments: bool = False

    def wrap_in(self, patch: Patch) -> None:
        """Register this replacement in a patch."""
        patch.wraps(self.transform.name, self.transform.modules, self.transform.releases)(self)

    def __call__(self, stock: Stock, *args: Any, **kwargs: Any) -> Any:
        """Build stock's transformation, to be run in float32."""
        tx, requested = stock(*args, **kwargs), requested_dtypes(stock, args, kwargs)

        def init_fn(params: PyTree) -> Any:
            state = tx.init(params)
            if not self._concerns(state, params):
                return state
            exact = tx.init(self._wide(params))
            if self.wide_moments:
                moments = {
                    name: half_to_float32(getattr(state, name)) for name in self.transform.moments
                }
                state = state._replace(**moments)
            return store(exact, state)

        def update_fn(
            updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
        ) -> tuple[PyTree, Any]:
            if not self._concerns(state, updates, params):
                return tx.update(updates, state, params, **extra_args)  # type: ignore[no-any-return]
            objective = extra_args.get("obj_fn")
            if objective is not None:  # What sophia differentiates is given the user's dtypes.
                extra_args["obj_fn"] = with_params_cast_back(params, objective)
            new_updates, new_state = tx.update(
                self._wide(updates), self._wide(state), self._wide(params), **extra_args
            )
            like, kept = params, None if params is not None else self._kept(state)
            if kept is not None and self.wide_moments and not kept_like(kept, updates):
                like = updates  # Nothing tells: the gradients stand in for the params.
            dtypes = update_dtypes(new_updates, updates, like, kept, requested)
            if dtypes is not None:
                rounded = map(_round_leaf, leaves(new_updates), dtypes)
                new_updates = unflatten_like(new_updates, rounded)
            step = functools.partial(tx.update, **extra_args)
            return new_updates, store(new_state, _as_stock_promotes(step, updates, state, params))

        return rebuild(tx, call_of(stock, args, kwargs), update_fn, init_fn)

    def _kept(self, state: Any) -> Any:
        """Return what tells the dtypes of the params, where the user passes in none."""
        # A moment that is wide by this patch alone tells nothing.
        wide = self.transform.moments if self.wide_moments else ()
        return state._replace(**dict.fromkeys(wide, ()))

    def _wide(self, tree: PyTree) -> PyTree:
        return tree_map(
            lambda leaf: cast(leaf, jnp.float32) if self.is_narrow(leaf) else leaf, tree
        )

    def _concerns(self, state: Any, *trees: PyTree) -> bool:
        moments = [getattr(state, name, None) for name in self.transform.moments]
        return any(map(self.is_narrow, leaves((moments, trees))))


def _as_stock_promotes(
    update: Callable[..., Any], updates: PyTree, state: Any, params: PyTree
) -> Any:
    """Cast the half-precision leaves of a state to the dtypes that stock gives them in this step.

    Stock promotes some of them where a gradient is wider than its param.
    """
    like = params if params is not None else next(iter(kept_like(state, updates)), updates)
    if same_dtypes(updates, like):
        return state
    try:
        with paused():
            after = jax.eval_shape(lambda *a: leaves(update(*a)[1]), updates, state, params)
    except Exception:  # Stock does not run there, so there is nothing to be as wide as.
        return state
    stored = (
        cast(leaf, new.dtype) if is_half(leaf) and kind_of(new.dtype) == REAL else leaf
        for leaf, new in zip(leaves(state), after)
    )
    return unflatten_like(state, stored)


def with_params_cast_back(params: PyTree, objective: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an objective so that it is given params in the user's dtypes."""

    def cast_first(wide: PyTree, *args: Any, **kwargs: Any) -> Any:
        return objective(cast_like(wide, params), *args, **kwargs)

    return counting(cast_first)


def store(new: PyTree, old: PyTree) -> PyTree:
    """Cast a new state to the dtypes of the old one; round moments by ``ROUNDINGS``."""

    def is_known(node: Any) -> bool:
        return type(node).__name__ in ROUNDINGS

    def stored(new: Any, old: Any) -> Any:
        if not is_known(old):
            return _round(new, old)
        roundings, bits = ROUNDINGS[type(old).__name__], _bits_of_step(new)
        fields = {
            name: _round(getattr(new, name), getattr(old, name), roundings.get(name), bits)
            for name in new._fields
        }
        if roundings.get("mu") == "below 256":
            fields["nu"] = _map(
                lambda nu, mu: (
                    to_float16("above square", cast(nu, jnp.float32), mu, bits)
                    if is_float16(nu)
                    else nu
                ),
                fields["nu"],
                fields["mu"],
            )
        return new._replace(**fields)

    return tree_map(stored, new, old, is_leaf=lambda node: node is None or is_known(node))


def _bits_of_step(state: Any) -> Any:
    """Return 16 bits for this step, those of a half for step 0.

    Multiples of the golden ratio spread most evenly, also over every second or tenth step.
    """
    count = next((getattr(state, name) for name in ("count", "t") if name in state._fields), 0)
    bits = jnp.asarray(count, jnp.uint32) * jnp.uint32(40503) + jnp.uint32(2**15)
    return bits.astype(jnp.uint16)


def _round(
    tree: PyTree, like: PyTree, rounding: Rounding | None = None, bits: Any = None
) -> PyTree:
    """Round each leaf to the dtype of the same leaf of ``like``, within its kind of number."""

    def rounded(leaf: Any, other: Any) -> Any:
        if not (hasattr(leaf, "dtype") and hasattr(other, "dtype")):
            return leaf
        if not may_cast(dtype_of(leaf), dtype_of(other)):
            return leaf
        if rounding is not None and is_float16(other) and not is_float16(leaf):
            return to_float16(rounding, leaf, other, bits)
        return _round_leaf(leaf, other.dtype)

    return _map(rounded, tree, like)


def _round_leaf(leaf: Any, dtype: Any) -> Any:
    """Round a leaf to a dtype. A number that is finite stays so in float16."""
    if dtype == jnp.float16 and not is_float16(leaf):
        leaf = _within(leaf, _HUGE)
    return cast(leaf, dtype)


def _map(function: Callable[..., Any], *trees: PyTree) -> PyTree:
    """``tree_map`` over trees any of which may have None for a leaf: a param that is frozen."""

    def unless_none(*leaves: Any) -> Any:
        return leaves[0] if any(leaf is None for leaf in leaves) else function(*leaves)

    return tree_map(unless_none, *trees, is_leaf=lambda leaf: leaf is None)
