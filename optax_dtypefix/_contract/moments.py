"""Round the moments of a state to half precision, so that none of them stalls.

A moment moves by a fraction of its distance to the next value. Rounded to nearest, a move of less
than half a unit in the last place is lost, in each step. So a moment is rounded up in some steps
and down in others, such that its mean over steps is right. The step counter of the state decides:
each run gives the same bits. The table names the fields of optax's states that are averages or
sums; all others are rounded to nearest.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Literal

import jax
import jax.numpy as jnp
import numpy as np

from .dtypes import (
    REAL,
    PyTree,
    cast,
    dtype_of,
    has_16_bits,
    is_half,
    kind_of,
    leaves,
    may_cast,
    tree_map,
    unflatten_like,
)
from .rounding import (
    bits_for,
    bits_of,
    bits_of_step,
    round_stochastically,
    round_to_nearest,
)

_TINY = 2.0**-24  # The smallest number above zero in float16.

Rule = Literal[
    "mean", "squares", "uncounted", "growing", "sum", "signed sum", "maximum", "uncounted mean"
]
"""What a field is.

- "mean": an average or a sum of numbers of both signs, in a state that counts.
- "squares": an average of squares, which divides, in a state that counts.
- "uncounted": an average of squares in a state that does not count.
- "growing": one that starts at zero and divides another of the same state.
- "uncounted mean": the mean beside one, of which the square is subtracted.
- "sum": a sum of squares in a state that does not count.
- "signed sum": a sum of numbers of both signs in a state that does not count.
- "maximum": of squares. Rounding to nearest commutes with a maximum.
"""

_MEAN_AND_SQUARES: dict[str, Rule] = {"mu": "mean", "nu": "squares"}
_AVERAGES: dict[str, Rule] = {"exp_avg": "mean", "exp_avg_sq": "squares"}
_VARIANCE: dict[str, Rule] = {"mu": "uncounted mean", "nu": "uncounted"}

RULES: dict[str, dict[str, Rule]] = {
    "ScaleByAdamState": _MEAN_AND_SQUARES,
    "ScaleByBeliefState": _MEAN_AND_SQUARES,
    "ScaleByNovogradState": _MEAN_AND_SQUARES,
    "SophiaState": _MEAN_AND_SQUARES,
    "ScaleByAmsgradState": {**_MEAN_AND_SQUARES, "nu_max": "maximum"},
    "ScaleByAdemamixState": {"m1": "mean", "m2": "mean", "nu": "squares"},
    "ScaleBySimplifiedAdEMAMixState": {"m": "mean", "n": "squares"},
    "ScaleByAdanState": {"m": "mean", "v": "mean", "n": "squares"},
    "MadgradState": {"s": "mean", "grad_sum_sq": "squares"},
    "FactoredState": {"v_row": "squares", "v_col": "squares", "v": "squares"},
    "ScaleByLionState": {"mu": "mean"},
    "MuonState": {"mu": "mean"},
    "EmaState": {"ema": "mean"},
    "ApplyEvery": {"grad_acc": "mean"},
    "ScheduleFreeState": {"z": "mean"},
    "MomoState": {"exp_avg": "mean"},
    "MomoAdamState": _AVERAGES,
    "DAdaptAdamWState": {**_AVERAGES, "grad_sum": "mean"},
    "ProdigyState": {**_AVERAGES, "grad_sum": "mean"},
    # These states do not count.
    "ScaleByRmsState": {"nu": "uncounted"},
    "ScaleByRmsWithCountState": {"nu": "squares"},
    "ScaleByRStdDevState": _VARIANCE,
    "ScaleByRStdDevWithCountState": _VARIANCE,
    "ScaleByAdaDeltaState": {"e_g": "growing", "e_x": "growing"},
    "ScaleByRssState": {"sum_of_squares": "sum"},
    # ``mu`` is the accumulator, and ``nu`` the momentum.
    "ScaleBySM3State": {"mu": "sum"},
    "COCOBState": {
        "scale": "maximum",
        "cumulative_gradients": "signed sum",
        "subgradients": "signed sum",
        "reward": "signed sum",
    },
}
"""By the name of the class of a state: what its fields are."""


def store(new: PyTree, old: PyTree) -> PyTree:
    """Cast a new state to the dtypes of the old one, within the kinds of number.

    Args:
      new: a state after a step, in any dtypes.
      old: the state before that step, of the same structure.

    Returns:
      The new state. Moments that become narrower are rounded as :data:`RULES` says.
    """
    if type(new) is not type(old):  # The user's subclass of a state: stock returns its own class.
        old = unflatten_like(new, leaves(old))
    return _map(_like, round_moments(new, old), old)


def round_moments(new: PyTree, old: PyTree) -> PyTree:
    """Round the moments of a new state that the old one has in half precision; leave the rest."""

    def rounded(new: Any, old: Any) -> Any:
        if not _is_known(old):
            return new
        rules, bits = RULES[type(old).__name__], _bits_of_step(new)

        def of_field(name: str) -> PyTree:
            def leaf(x: Any, before: Any) -> Any:
                if not _is_narrowed(x, before):
                    return x
                of_leaf = None if bits is None else bits_for(x.shape, _beside(x, bits))
                return _to_half(rules[name], x, before, of_leaf)

            return _map(leaf, getattr(new, name), getattr(old, name))

        fields = {
            # The state of schedule_free has another inside.
            name: of_field(name)
            if name in rules
            else round_moments(getattr(new, name), getattr(old, name))
            for name in old._fields
        }
        if rules.get("mu") == "uncounted mean":
            fields["nu"] = _map(_no_less_than_square, fields["nu"], fields["mu"], new.nu)
        return new._replace(**fields)

    return tree_map(rounded, new, old, is_leaf=lambda node: node is None or _is_known(node))


def _is_known(node: Any) -> bool:
    name = type(node).__name__
    return name in RULES and type(node).__module__.partition(".")[0] == "optax"


def _is_narrowed(leaf: Any, before: Any) -> bool:
    """Check whether a real leaf was in half precision, and now is wider."""
    if not (hasattr(leaf, "dtype") and hasattr(before, "dtype")):
        return False
    now = dtype_of(leaf)
    return has_16_bits(before) and kind_of(now) == REAL and now.itemsize > 2


def _like(leaf: Any, before: Any) -> Any:
    if not (hasattr(leaf, "dtype") and hasattr(before, "dtype")):
        return leaf
    same_kind = may_cast(dtype_of(leaf), dtype_of(before))
    return round_leaf(leaf, before.dtype) if same_kind else leaf


def round_leaf(leaf: Any, dtype: Any) -> Any:
    """Round a leaf to nearest. A number that is finite stays so in float16."""
    if dtype == jnp.float16 and dtype_of(leaf) != jnp.float16:
        return round_to_nearest(leaf, dtype)
    return cast(leaf, dtype)


def _bits_of_step(state: Any) -> Any:
    """Return the bits of this step; None if the state has no counter."""
    names = (name for name in ("count", "t", "step_count") if name in state._fields)
    count = getattr(state, next(names, ""), None)
    return None if count is None else bits_of_step(count)


def _beside(x: Any, bits: Any) -> Any:
    """Free the bits from the device of the counter: an eager leaf may be on another device."""
    eager = not any(isinstance(a, jax.core.Tracer) for a in (x, bits))
    if not eager or jax.local_device_count() == 1:
        return bits
    return np.asarray(bits) if bits.devices() != jnp.asarray(x).devices() else bits


@functools.partial(jax.jit, static_argnums=0)  # Traced once a shape, not once a leaf.
def _to_half(rule: Rule, x: Any, old: Any, bits: Any) -> Any:
    return _straight_through(_ROUND[rule], old.dtype, x, old, bits)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _straight_through(how: Callable[..., Any], dtype: Any, x: Any, old: Any, bits: Any) -> Any:
    """Round, with the derivative of a cast."""
    return how(x, old, bits, dtype)


@_straight_through.defjvp
def _cast_tangent(
    how: Callable[..., Any], dtype: Any, primals: Any, tangents: Any
) -> tuple[Any, Any]:
    return _straight_through(how, dtype, *primals), cast(tangents[0], dtype)


def _mean(x: Any, old: Any, bits: Any, dtype: Any) -> Any:
    del old
    rounded = round_stochastically(x, dtype, bits)
    if dtype != jnp.float16:
        return rounded
    # A step of the smallest numbers is large beside a mean of numbers of both signs.
    return jnp.where(jnp.abs(x) < 2.0**-14, round_leaf(x, dtype), rounded)


def _squares(x: Any, old: Any, bits: Any, dtype: Any) -> Any:
    del old
    return _above_zero(x, round_stochastically(x, dtype, bits))


def _unless_stuck(x: Any, old: Any, dtype: Any) -> Any:
    """Round to nearest. What would stay where it is moves in some steps: bits of x decide.

    They differ from step to step unless the gradients repeat. Then nothing tells the steps apart.
    """
    exact = jax.lax.bitcast_convert_type(cast(x, jnp.float32), jnp.uint32)
    if dtype == jnp.float16:
        is_stuck = bits_of(round_leaf(x, dtype)) == bits_of(old)
    else:
        before = jax.lax.bitcast_convert_type(cast(old, jnp.float32), jnp.uint32)
        # Numbers of one sign are ordered as their bits, and bfloat16 has the upper 16 of them.
        is_stuck = exact - before + jnp.uint32(2**15) <= jnp.uint32(2**16)
    mixed = (exact * jnp.uint32(0x9E3779B1)) >> 16
    return round_stochastically(x, dtype, jnp.where(is_stuck, mixed, 2**15).astype(jnp.uint16))


def _signed_sum(x: Any, old: Any, bits: Any, dtype: Any) -> Any:
    del bits
    return round_leaf(x, dtype) if dtype == jnp.float16 else _unless_stuck(x, old, dtype)


def _sum(x: Any, old: Any, bits: Any, dtype: Any) -> Any:
    return _above_zero(x, _signed_sum(x, old, bits, dtype))


def _uncounted(x: Any, old: Any, bits: Any, dtype: Any) -> Any:
    del bits
    return _above_zero(x, _unless_stuck(x, old, dtype))


def _growing(x: Any, old: Any, bits: Any, dtype: Any) -> Any:
    """Round to nearest in float16, but what grows does so where float16 has few numbers."""
    if dtype != jnp.float16:
        return _uncounted(x, old, bits, dtype)
    wide = cast(old, x.dtype)
    grown = jnp.where((x > wide) & (x < 2.0**-14), jnp.maximum(x, wide + _TINY), x)
    return _above_zero(x, round_leaf(grown, dtype))


def _maximum(x: Any, old: Any, bits: Any, dtype: Any) -> Any:
    del old, bits
    return _above_zero(x, round_leaf(x, dtype))


def _uncounted_mean(x: Any, old: Any, bits: Any, dtype: Any) -> Any:
    """Round a mean whose square float16 has to hold, too."""
    del bits
    if dtype != jnp.float16:
        return _unless_stuck(x, old, dtype)
    return cast(_within(x, 255.0), dtype)


_ROUND: dict[str, Callable[..., Any]] = {
    "mean": _mean,
    "squares": _squares,
    "uncounted": _uncounted,
    "growing": _growing,
    "uncounted mean": _uncounted_mean,
    "sum": _sum,
    "signed sum": _signed_sum,
    "maximum": _maximum,
}


def _above_zero(x: Any, rounded: Any) -> Any:
    """Keep positive what is: a moment of zero makes an update too large by orders of magnitude."""
    if rounded.dtype != jnp.float16:
        return rounded
    return jnp.where(x > 0, jnp.maximum(rounded, jnp.float16(_TINY)), rounded)


def _no_less_than_square(nu: Any, mu: Any, exact: Any) -> Any:
    """Round up a mean of squares to that of the mean: rounded apart, the variance is negative."""
    if not is_half(nu) or is_half(exact):
        return nu
    wide, unit = cast(mu, jnp.float32), float(jnp.finfo(nu.dtype).eps)
    least = jnp.square(wide) * (1 + unit) + (_TINY / 2 if nu.dtype == jnp.float16 else 0)
    return jnp.where(cast(nu, jnp.float32) < least, round_leaf(least, nu.dtype), nu)


def _within(x: Any, limit: float) -> Any:
    """Limit finite numbers; keep infinite ones for the user to see."""
    return jnp.where(jnp.isinf(x), x, jnp.clip(x, -limit, limit))


def _map(function: Callable[..., Any], *trees: PyTree) -> PyTree:
    """``tree_map`` over trees any of which may have None for a leaf: a param that is frozen."""

    def unless_none(*leaves: Any) -> Any:
        return leaves[0] if any(leaf is None for leaf in leaves) else function(*leaves)

    return tree_map(unless_none, *trees, is_leaf=lambda leaf: leaf is None)
