"""Say what patches ask for in what a function of optax builds, as records."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax.numpy as jnp

from ..._contract.dtypes import HALVES
from ..._tally import Tally

BFLOAT16, FLOAT16 = (frozenset({dtype}) for dtype in HALVES)
NARROW = frozenset(
    (*HALVES, *(jnp.dtype(getattr(jnp, name)) for name in dir(jnp) if name.startswith("float8_")))
)
"""All floats that are narrower than float32."""

NOTHING = frozenset[Any]()

BETS = ("r", "m", "v", "s")
"""Fields of the state of ``mechanize`` with a number for each of its betas."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)  # Cheaper to import than a whole one.
class Lifts:
    """What a patch asks for.

    Attributes:
      narrow: the dtypes of which stock is given float32 copies.
      keeps: whether the state keeps its dtypes, and updates are bounded, also where nothing is
        narrow.
      integers: whether stock is given integer gradients and params as float32.
      one_dtype: whether stock needs all leaves in one dtype, float32 or wider. Scalars of the
        state are then kept in float32.
      in_32_bits: whether stock itself computes in float64 in 64-bit mode, and so has to run in
        32-bit mode.
      combines: whether stock calls other transformations, each of which starts its own state.
      calls_links: whether stock calls no functions but those of the other transformations.
      around_another: whether it calls one with params of other shapes, and starts its state so.
      like_grads: whether stock gives an update the dtype of its gradient, whatever its param.
      fits_arguments: whether a float64 argument must not make float64 of narrower leaves.
      wide: lists the fields that a new state of a class has in float32, for requested dtypes and
        that of a leaf; None for any.
      statistics: fields of the state that are kept in float32, beside scalars.
      inner: the argument, and the field of the state, of the transformation inside, if that
        is a part of the state.
      change: replaces stock, where stock is wrong in any dtype. It is given a transformation, its
        arguments, and the tally of the patch.

    In ``LIFTS``, ``wide`` and ``change`` are ``file:name``: the file is imported when it is needed.
    """

    narrow: frozenset[Any] = NOTHING
    keeps: bool = False
    integers: bool = False
    one_dtype: bool = False
    in_32_bits: bool = False
    combines: bool = False
    calls_links: bool = False
    around_another: bool = False
    like_grads: bool = False
    fits_arguments: bool = False
    statistics: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    wide: Any = None
    change: Any = None


class Asking(NamedTuple):
    """What all patches of a function of optax ask for.

    Attributes:
      builder: the name of the function; none if it makes a transformation of others.
      asked: what each patch asks for, the innermost first, and its tally.
      opted_out: the dtypes that patches would lift which the user has switched off: there stock
        runs on its own leaves.
      requested: the dtypes that the user asked for; None if the arguments of stock say so.
    """

    builder: str = ""
    asked: tuple[tuple[Any, Tally], ...] = ()
    opted_out: frozenset[Any] = NOTHING
    requested: tuple[Any, ...] | None = None


@functools.lru_cache(maxsize=128)  # More than one set of patches needs; others come and go.
def merged(asked: tuple[tuple[Lifts, Tally], ...]) -> Lifts:
    """Return one record of what several patches ask for, the innermost first."""
    asks = [ask for ask, _ in asked]
    found: dict[str, Any] = {"narrow": NOTHING.union(*(ask.narrow for ask in asks))}
    for field in dataclasses.fields(Lifts)[1:]:
        values = (getattr(ask, field.name) for ask in asks)
        found[field.name] = next(filter(None, values), field.default)
    return Lifts(**found)


_KEEPING = Lifts(keeps=True, integers=True)
_ONE_DTYPE = dataclasses.replace(_KEEPING, narrow=NARROW, one_dtype=True)
_NORM = Lifts(NARROW, fits_arguments=True)
_DISTANCE = dataclasses.replace(
    _ONE_DTYPE,
    in_32_bits=True,
    fits_arguments=True,
    wide="distance_estimates:averages",
    change="distance_estimates:change",
)

LIFTS: dict[str, Lifts] = {
    "bfloat16_moments": Lifts(BFLOAT16),
    "distance_estimates": _DISTANCE,
    "distance_estimates:mechanize": dataclasses.replace(
        _DISTANCE,
        around_another=True,
        inner=("base_optimizer", "base_optimizer_state"),
        statistics=BETS,
    ),
    "float16_eps": Lifts(FLOAT16),
    "float32_moments": Lifts(NARROW, wide="float32_moments:wide"),
    "global_norm:clip_by_block_rms": dataclasses.replace(
        _NORM, like_grads=True, change="global_norm:clip_by_block_rms"
    ),
    "global_norm:clip_by_global_norm": dataclasses.replace(
        _NORM, like_grads=True, change="global_norm:clip_by_global_norm"
    ),
    # In these, the widest leaf promotes all others.
    "global_norm:normalize": dataclasses.replace(_NORM, change="global_norm:normalize"),
    "global_norm:normalize_by_update_norm": dataclasses.replace(
        _NORM, change="global_norm:normalize_by_update_norm"
    ),
    "global_norm:scale_by_params": _NORM,
    "learning_rate": Lifts(keeps=True, fits_arguments=True),
    "learning_rate:no_integers": dataclasses.replace(_KEEPING, fits_arguments=True),
    "prodigy": _DISTANCE,
    "promotion": _KEEPING,
    "promotion:around_another": Lifts(keeps=True, around_another=True),
    "promotion:chain": Lifts(combines=True, calls_links=True),
    "promotion:combine": Lifts(combines=True),
    "promotion:count_in_int32": dataclasses.replace(_KEEPING, change="promotion:count_in_int32"),
    "promotion:in_32_bits": dataclasses.replace(_KEEPING, in_32_bits=True),
    "promotion:keeping_integers": Lifts(keeps=True),
    "promotion:like_grads": dataclasses.replace(_ONE_DTYPE, like_grads=True),
    "promotion:one_dtype": _ONE_DTYPE,
    "promotion:one_dtype_in_32_bits": dataclasses.replace(_ONE_DTYPE, in_32_bits=True),
    "reduce_on_plateau": Lifts(NARROW, keeps=True, change="reduce_on_plateau:change"),
    "zoom_linesearch:scale_by_lbfgs": dataclasses.replace(
        _ONE_DTYPE,
        in_32_bits=True,
        statistics=("weights_memory",),
        change="zoom_linesearch:change_lbfgs",
    ),
    "zoom_linesearch:strict": dataclasses.replace(
        _ONE_DTYPE, change="zoom_linesearch:change_strict"
    ),
    "zoom_linesearch:wide": dataclasses.replace(_ONE_DTYPE, change="zoom_linesearch:change"),
}
"""What each patch asks for, by the layer that a row of ``BUILDERS`` names."""
