"""Start the state of a transformation in the dtypes that its steps keep."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp

from ..._contract.dtypes import (
    PyTree,
    cast,
    cast_like,
    dtype_of,
    dtypes_in,
    is_inexact,
    is_real,
    leaves,
    strip_weak_type,
    tree_map,
)
from ..._contract.kinds import promote_initial_state
from ..._contract.moments import roundings_of
from ..._contract.promotion import standard_promotion
from ..._contract.state import cast_back
from ..._contract.widths import compute_dtype, float_dtype
from ..._contract.x64 import without_x64
from .links import with_parts

if TYPE_CHECKING:
    from .lifting import Lifting
    from .lifts import Lifts

_FLOAT32 = jnp.dtype(jnp.float32)

STARTS_ABOVE_ZERO = frozenset(
    {"scale_by_yogi", "scale_by_rms", "scale_by_stddev", "scale_by_rss", "scale_by_cocob"}
)
"""Functions with an average or a sum that starts above zero, for some arguments at least."""


def start(lifting: Lifting, update: Callable[..., Any], params: PyTree) -> Any:
    """Return a new state of stock, in dtypes that a step by ``update`` keeps."""
    if lifting.starts_links:
        return lifting.tx.init(params)
    state = _start(lifting, update, params)
    dtypes = dtypes_in(params) | (lifting.narrow_requested & lifting.narrow)
    acting = [tally for ask, tally in lifting.asked if not ask.narrow.isdisjoint(dtypes)]
    keeping = [tally for ask, tally in lifting.asked if ask.one_dtype]
    for tally in acting or (keeping if dtypes != {_FLOAT32} or lifting.all.change else ()):
        tally.reach()
    if not acting or (lifting.links and not lifting.all.inner):
        return state
    return _widen(lifting, update, state, lifting.narrow & dtypes)


def _start(lifting: Lifting, update: Callable[..., Any], params: PyTree) -> Any:
    if not lifting.all.keeps:
        return lifting.tx.init(params)
    state = _in_kinds(lifting, params)
    if not lifting.all.inner:  # What is inside has done so.
        state = promote_initial_state(update, state, params)
    return strip_weak_type(state)


def _in_kinds(lifting: Lifting, params: PyTree) -> Any:
    """Start moments of integers as floats, and scalars in float32 where stock mixes dtypes."""
    asks, stock = lifting.all, lifting.tx.init
    if asks.inner:  # It starts with the user's params, once.
        stock = lifting.built_with(functools.partial(_started, asks, params)).init

    def init(params: PyTree) -> Any:
        with standard_promotion():
            return without_x64(stock, params) if asks.in_32_bits else stock(params)

    given = params
    if asks.integers:
        given = tree_map(lambda leaf: cast(leaf, float_dtype(dtype_of(leaf))), params)
    dtype = compute_dtype(given)
    if not asks.one_dtype or dtypes_in(given) <= {dtype}:
        return init(given)
    wide = init(tree_map(lambda leaf: cast(leaf, dtype) if is_real(leaf) else leaf, given))
    try:
        state = init(given)
    except Exception:  # Of bfloat16 and float16, none is the lowest.
        return _narrowed(wide, given)
    kept = {name: getattr(wide, name) for name in asks.statistics}
    return tree_map(
        lambda wide, leaf: wide if _is_scalar(wide) or not is_inexact(leaf) else leaf, wide, state
    )._replace(**kept)


def _narrowed(state: PyTree, params: PyTree) -> PyTree:
    """Cast the parts of a state that are trees like the params to their dtypes."""
    structure: Any = jax.tree_util.tree_structure(params)
    shapes = list(map(jnp.shape, leaves(params)))

    def is_like_params(node: Any) -> bool:
        same: bool = structure == jax.tree_util.tree_structure(node)
        return same and shapes == list(map(jnp.shape, leaves(node)))

    def narrow(node: Any) -> Any:
        return cast_like(node, params) if is_like_params(node) else node

    return tree_map(narrow, state, is_leaf=is_like_params)


def _started(asks: Lifts, params: PyTree, name: str, value: Any) -> Any:
    if name != asks.inner[0]:
        return value

    @functools.cache  # Stock may start twice.
    def start_once() -> Any:
        return promote_initial_state(value.update, value.init(params), params)

    return with_parts(value, init=lambda _: start_once())


def _is_scalar(leaf: Any) -> bool:
    return is_inexact(leaf) and not jnp.shape(leaf)


def _widen(lifting: Lifting, update: Callable[..., Any], state: Any, narrow: frozenset[Any]) -> Any:
    """Widen fields, and round other initial values: eps is 0 in float16.

    One number tells them all. To start the whole state in float32 would take four times the memory
    of stock.
    """
    at_zero = lifting.builder not in STARTS_ABOVE_ZERO
    wide = set[str]().union(*(lifting.wide_fields(type(state), dtype) for dtype in narrow))
    one = None if at_zero else _start(lifting, update, jnp.zeros((1,), jnp.float32))

    def started(leaf: Any, name: str) -> Any:
        if dtype_of(leaf) not in narrow:
            return leaf
        is_wide = name in lifting.wide_fields(type(state), dtype_of(leaf))
        dtype = jnp.float32 if is_wide else dtype_of(leaf)
        if one is None:
            return cast(leaf, dtype)
        stored = cast_back(one, one._replace(**{name: jnp.zeros((1,), dtype)}))
        return cast(leaf, dtype) * 0 + getattr(stored, name)[0]

    fields = {
        name: tree_map(functools.partial(started, name=name), getattr(state, name))
        for name in (wide if at_zero else roundings_of(state.__class__))
    }
    return state._replace(**fields)
