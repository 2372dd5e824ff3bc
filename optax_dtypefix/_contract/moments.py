"""Round the moments of a state to half precision, so that none of them stalls.

A moment moves by a fraction of its distance to the next value. Rounded to nearest, a move of less
than half a unit in the last place is lost, in each step. So a moment is rounded up in some steps
and down in others, such that its mean over steps is right. The step counter of the state decides:
each run gives the same bits. The table names the fields of optax's states that are averages or
sums; all others are rounded to nearest.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp

from .bits import (
    bits_for,
    bits_of_corner,
    bits_of_data,
    bits_of_step,
    free_from_device,
    upper_bits,
)
from .dtypes import (
    HALVES,
    REAL,
    PyTree,
    cast,
    is_deleted,
    is_half,
    is_none,
    is_real,
    kind_of,
    leaves,
    leaves_and_none,
    tree_map,
)
from .rounding import (
    Rounding,
    dither,
    dither_above_zero,
    dither_alike,
    dither_within_root,
    round_above_zero,
    round_leaf,
)

_ADAM: dict[str, Rounding] = {"mu": dither, "nu": dither_above_zero}
_AVERAGES: dict[str, Rounding] = {"exp_avg": dither, "exp_avg_sq": dither_above_zero}
_VARIANCE: dict[str, Rounding] = {"mu": dither_within_root, "nu": dither_above_zero}

ROUNDINGS: dict[str, dict[str, Rounding]] = {
    "ScaleByAdamState": _ADAM,
    "ScaleByBeliefState": _ADAM,
    "ScaleByNovogradState": _ADAM,
    "SophiaState": _ADAM,
    "ScaleByAmsgradState": {**_ADAM, "nu_max": round_above_zero},
    "ScaleByAdemamixState": {"m1": dither, "m2": dither, "nu": dither_above_zero},
    "ScaleBySimplifiedAdEMAMixState": {"m": dither, "n": dither_above_zero},
    "ScaleByAdanState": {"m": dither, "v": dither, "n": dither_above_zero},
    "MadgradState": {"s": dither, "grad_sum_sq": dither_above_zero},
    "FactoredState": dict.fromkeys(("v_row", "v_col", "v"), dither_above_zero),
    "ScaleByLionState": {"mu": dither},
    "MuonState": {"mu": dither},
    "EmaState": {"ema": dither},
    "ApplyEvery": {"grad_acc": dither},
    "ScheduleFreeState": {"z": dither},
    "MomoState": {"exp_avg": dither},
    "MomoAdamState": _AVERAGES,
    "DAdaptAdamWState": {**_AVERAGES, "grad_sum": dither},
    "ProdigyState": {**_AVERAGES, "grad_sum": dither},
    # These states do not count, but for those that say so.
    "TraceState": {"trace": dither},
    "ScaleByRmsState": {"nu": dither_above_zero},
    "ScaleByRmsWithCountState": {"nu": dither_above_zero},
    "ScaleByRStdDevState": _VARIANCE,
    "ScaleByRStdDevWithCountState": _VARIANCE,
    "ScaleByAdaDeltaState": {"e_g": dither_above_zero, "e_x": dither_above_zero},
    "ScaleByRssState": {"sum_of_squares": dither_above_zero},
    # ``mu`` is the accumulator, and ``nu`` the momentum.
    "ScaleBySM3State": {"mu": dither_alike, "nu": dither},
    "COCOBState": {
        "scale": round_above_zero,
        "cumulative_gradients": dither,
        "subgradients": dither,
        "reward": dither,
    },
}
"""By the name of the class of a state: how its averages, sums and maxima are rounded."""


@functools.cache
def roundings_of(state: type) -> dict[str, Rounding]:
    """Return the row of a class of states, or of the class that a user derived it from; or none."""
    names = (base.__name__ for base in state.__mro__)
    return next((ROUNDINGS[name] for name in names if name in ROUNDINGS), {})


def moments(state: type) -> tuple[str, ...]:
    """List the fields of a class of states that are averages, sums or maxima."""
    return tuple(roundings_of(state))


def moments_in(state: PyTree) -> list[PyTree]:
    """List the moments of all states in a state."""
    found: list[PyTree] = []

    def collect(node: Any) -> bool:
        if isinstance(node, tuple):
            found.extend([getattr(node, name, None) for name in moments(type(node))])
        return False  # Look at all nodes: one may be inside another.

    jax.tree_util.tree_leaves(state, is_leaf=collect)
    return found


@functools.cache
def second_moments(state: type) -> tuple[str, ...]:
    """List the fields of a class of states by which updates are divided, and their inputs."""
    fields = roundings_of(state)
    if dither_above_zero not in fields.values():  # A maximum alone, as in cocob, is no moment.
        return ()
    return tuple(name for name, how in fields.items() if how is not dither)


def round_moments(new: PyTree, old: PyTree, grads: PyTree = None) -> PyTree:
    """Round the moments of a new state that the old one has in half precision; leave the rest.

    The gradients tell steps apart where the state does not count.
    """

    def rounded(new: Any, old: Any) -> Any:
        try:
            return _round_fields(new, old, grads) if _is_known(old) else new
        except (RuntimeError, ValueError):
            if not any(map(is_deleted, leaves(old))):
                raise
            return new  # A function of the user's has donated the old one: to nearest.

    return tree_map(rounded, new, old, is_leaf=_is_known)


def _round_fields(new: Any, old: Any, grads: PyTree) -> Any:
    roundings = ROUNDINGS[type(old).__name__]
    if "e_x" in roundings:
        parts = new.e_x, new.e_g, old.e_g
        new = new._replace(e_x=tree_map(_in_proportion, *parts, is_leaf=is_none))
    rows = {}
    for name in roundings:
        pairs = zip(leaves_and_none(getattr(new, name)), leaves_and_none(getattr(old, name)))
        rows[name] = [
            (x, before, _narrows(getattr(x, "dtype", None), getattr(before, "dtype", None)))
            for x, before in pairs
        ]
    bits = _bits_of_step(new, rows, grads)
    fields = {}
    for name, how in roundings.items():
        flat = [
            _round_to_half(how, x, before, bits(x, name, place)) if is_narrowed else x
            for place, (x, before, is_narrowed) in enumerate(rows[name])
        ]
        structure: Any = jax.tree_util.tree_structure(getattr(new, name), is_leaf=is_none)
        fields[name] = structure.unflatten(flat)
    if roundings.get("mu") is dither_within_root:
        moments = fields["nu"], fields["mu"], new.nu
        fields["nu"] = tree_map(_no_less_than_square, *moments, is_leaf=is_none)
    inside = "base_optimizer_state"  # Of schedule_free.
    if inside in old._fields:
        states = getattr(new, inside), getattr(old, inside)
        fields[inside] = round_moments(*states, grads)
    return new._replace(**fields)


def _in_proportion(squares_of_updates: Any, squares: Any, before: Any) -> Any:
    """Let adadelta's second average stop where its first does, which is at 65504 in float16.

    An update is as large as the root of their quotient, and its square is in the second average: if
    the first one alone stops, the other feeds on itself.
    """
    if not _narrows(getattr(squares, "dtype", None), getattr(before, "dtype", None)):
        return squares_of_updates
    largest = float(jnp.finfo(before.dtype).max)
    return squares_of_updates * jnp.where(squares > largest, largest / squares, 1)


def _is_known(node: Any) -> bool:
    name = type(node).__name__
    return name in ROUNDINGS and type(node).__module__.partition(".")[0] == "optax"


@functools.cache
def _narrows(now: Any, was: Any) -> bool:
    """Check whether a real number of one dtype becomes a bfloat16 or float16; None is no number."""
    return now is not None and was in HALVES and kind_of(now) == REAL and now.itemsize > 2


def _bits_of_step(
    state: Any, rows: dict[str, list[tuple[Any, Any, bool]]], grads: PyTree
) -> Callable[[Any, str, int], Any]:
    """Return a function that gives the bits of this step for a leaf of a field, by its place.

    All moments of a param have the same bits: errors cancel where one is divided by another.
    """
    fields = state._asdict()
    count = fields.get("count", fields.get("t", fields.get("step_count")))
    if count is not None:
        of_step = bits_of_step(count)
    else:
        from .steps import bits_of_outermost  # Not at the top: adam counts its steps.

        of_step = bits_of_outermost((grads, state))
    if of_step is not None:
        return lambda x, *_: bits_for(x.shape, free_from_device(of_step, x))
    flat = leaves_and_none(grads)
    params = {name: _params_of(fields[name], grads) for name in rows}

    def bits(x: Any, name: str, place: int) -> Any:
        param = params[name][place]
        grad = flat[param] if param < len(flat) else None
        # The new moment would do as well. But XLA would store it, to read it twice.
        if grad is None or not is_real(grad) or is_deleted(grad):
            return bits_of_data(bits_of_corner(x), x)
        corner = bits_of_corner(grad)
        if grad.shape != x.shape:  # Of sm3: the accumulators of a param are rounded alike.
            return upper_bits(corner)
        return bits_of_data(corner, rows[name][place][1], grad)

    return bits


def _params_of(field: PyTree, grads: PyTree) -> list[int]:
    """Return for each leaf of a field the number of the param that it belongs to."""
    structure: Any = jax.tree_util.tree_structure(grads, is_leaf=is_none)
    parts = leaves_and_none(field)
    if grads is not None:
        with contextlib.suppress(TypeError, ValueError):  # A field has one vector for all params.
            parts = structure.flatten_up_to(field)
    return [param for param, part in enumerate(parts) for _ in leaves_and_none(part)]


@functools.partial(jax.jit, static_argnums=0)  # Traced once a shape, not once a leaf.
def _round_to_half(how: Rounding, x: Any, old: Any, bits: Any) -> Any:
    return _straight_through(how, x, old, bits)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _straight_through(how: Rounding, x: Any, old: Any, bits: Any) -> Any:
    """Round, with the derivative of a cast."""
    return how(x, old, bits)


@_straight_through.defjvp
def _cast_tangent(how: Rounding, primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _straight_through(how, *primals), cast(tangents[0], primals[1].dtype)


def _no_less_than_square(nu: Any, mu: Any, exact: Any) -> Any:
    """Round up a mean of squares to that of the mean: rounded apart, the variance is negative."""
    if not is_half(nu) or is_half(exact):
        return nu
    wide, unit = cast(mu, jnp.float32), float(jnp.finfo(nu.dtype).eps)
    least = jnp.square(wide) * (1 + unit) + (2.0**-25 if nu.dtype == jnp.float16 else 0)
    return jnp.where(cast(nu, jnp.float32) < least, round_leaf(least, nu.dtype), nu)
