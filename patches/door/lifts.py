"""Say what patches ask for in what a function of optax builds, as records."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, NamedTuple

import jax.numpy as jnp

from ..._contract.dtypes import HALVES
from ..._tally import Tally

BFLOAT16, FLOAT16 = (frozenset({dtype}) for dtype in HALVES)
NARROW = frozenset(
    (*HALVES, *(jnp.dtype(getattr(jnp, name)) for name in dir(jnp) if name.startswith("float8_")))
)
"""All floats that are narrower than float32."""

NOTHING = frozenset[Any]()

OPTED_OUT = {"bfloat16_moments": BFLOAT16, "float16_eps": FLOAT16}
"""By patch, the dtypes in which stock runs on its own leaves where the user switched it off."""


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
      passes: beside Python numbers stock keeps floats, if these trees have the same ones.
      fits_arguments: whether a float64 argument must not make float64 of narrower leaves.
      wide: lists the fields that a new state of a class has in float32, for requested dtypes and
        that of a leaf; None for any.
      statistics: fields of the state that are kept in float32, beside scalars.
      inner: the argument, and the field of the state, of the transformation inside, if that
        is a part of the state.
      change: replaces stock, where stock is wrong in any dtype. It is given a transformation, its
        arguments, and the tally of the patch.
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
    passes: tuple[str, ...] = ()
    fits_arguments: bool = False
    wide: Callable[[type, tuple[Any, ...], Any], tuple[str, ...]] | None = None
    statistics: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    change: Callable[[Any, dict[str, Any], Tally], Any] | None = None


class Asking(NamedTuple):
    """What all patches of a function of optax ask for.

    Attributes:
      builder: the name of the function; none if it makes a transformation of others.
      asked: what each patch asks for, the innermost first, and its tally.
      opted_out: the dtypes that patches would lift which the user has switched off.
      requested: the dtypes that the user asked for; None if the arguments of stock say so.
    """

    builder: str = ""
    asked: tuple[tuple[Any, Tally], ...] = ()
    opted_out: frozenset[Any] = NOTHING
    requested: tuple[Any, ...] | None = None


@functools.cache
def merged(asked: tuple[tuple[Lifts, Tally], ...]) -> Lifts:
    """Return one record of what several patches ask for, the innermost first."""
    asks = [ask for ask, _ in asked]
    found: dict[str, Any] = {"narrow": NOTHING.union(*(ask.narrow for ask in asks))}
    for field in dataclasses.fields(Lifts)[1:]:
        values = (getattr(ask, field.name) for ask in asks)
        found[field.name] = next(filter(None, values), field.default)
    return Lifts(**found)
