"""Train half-precision params as well as float32 ones: master weights, or stochastic rounding."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .bits import bits_of_elements
from .dtypes import (
    PyTree,
    cast,
    dtype_of,
    has_16_bits,
    is_number,
    is_weak,
    kind_of,
    leaves,
    safe_increment,
    same_structure,
    tree_map,
    unflatten_like,
)
from .rounding import bits_of, round_stochastically, round_to_nearest
from .state import cast_back, ids_of_fields
from .wrong_arguments import refuse_no_transformation, refuse_wrong_key

if TYPE_CHECKING:
    import optax
    from jax.typing import DTypeLike


class MasterWeightsState(NamedTuple):
    """The state of `master_weights`.

    Attributes:
      master: the params, in float32 where the user's are in half precision.
      inner_state: the state of the wrapped transformation.
    """

    master: PyTree
    inner_state: PyTree


class StochasticRoundingState(NamedTuple):
    """The state of `master_weights` with a ``rounding_key``.

    Attributes:
      key: the key of ``jax.random`` for the next step.
      inner_state: the state of the wrapped transformation.
    """

    key: Any
    inner_state: PyTree


class RoundingByTurnsState(NamedTuple):
    """The state of `master_weights` with ``copy=False`` and no ``rounding_key``.

    Attributes:
      count: the number of steps.
      inner_state: the state of the wrapped transformation.
    """

    count: Any
    inner_state: PyTree


STATES = (MasterWeightsState, StochasticRoundingState, RoundingByTurnsState)


def master_weights(
    tx: optax.GradientTransformation,
    *,
    dtype: DTypeLike = jnp.float32,
    copy: bool = True,
    rounding_key: jax.Array | None = None,
    narrow_state: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Keep a float32 copy of half-precision params, so that small updates are not rounded away.

    Wrap the whole optimizer: ``tx`` sees the copy, and half-precision gradients in the dtype of the
    copy. Apply the updates with ``optax.apply_updates``: the new params are the copy, rounded to
    the dtypes of the params. ``eqx.apply_updates`` would make the params float32. If you change the
    params in another way, such as by clipping, the copy follows, element by element.

    Do not combine a line search with ``optax.value_and_grad_from_state``: the search evaluates
    ``value_fn`` at the copy, and ``value_and_grad_from_state`` at the params. float8 params have no
    copy. Around a schedule-free optimizer, pass the parts of the state to optax:
    ``schedule_free_eval_params(state.inner_state, state.master)``.

    With ``rounding_key``, no copy is kept. The new params are rounded stochastically, so that they
    are right on average (Gupta et al., 2015, https://arxiv.org/abs/1502.02551). With ``copy=False``
    and no key, rounding is stochastic but deterministic: a param goes up in some steps and down in
    others, and each run gives the same bits.

    With ``narrow_state`` the state of ``tx`` has the dtypes that it has without the wrapper, and
    moments are rounded in this way too. ``master_weights(optax.adamw(1e-3), copy=False,
    narrow_state=True)`` keeps 6 bytes a param, params included; a step needs more while it runs.

    Args:
      tx: anything with ``init`` and ``update``.
      dtype: the dtype of the copy, float32 or float64.
      copy: whether to keep a copy of the params.
      rounding_key: a key of ``jax.random``: keep no copy, and round at random.
      narrow_state: whether moments of half-precision params stay in half precision.

    Returns:
      An ``optax.GradientTransformationExtraArgs``; before optax 0.1.5 an
      ``optax.GradientTransformation``. Its updates have the dtype of the copy where params are in
      half precision; other leaves get the updates of ``tx``. ``update`` needs the params, and
      raises ``ValueError`` without them; ``init`` raises it if a pytree node casts the copy to half
      precision. The state is a ``MasterWeightsState``, which takes 4 bytes a param, a
      ``StochasticRoundingState`` or a ``RoundingByTurnsState``.

    Raises:
      TypeError: ``tx`` is no transformation, or ``rounding_key`` no key.
    """
    import optax

    refuse_no_transformation("master_weights({})", tx)
    refuse_wrong_key("rounding_key", rounding_key)
    kind = getattr(optax, "GradientTransformationExtraArgs", optax.GradientTransformation)
    inner: Any = tx
    if isinstance(tx, optax.GradientTransformation) and kind is not optax.GradientTransformation:
        inner = optax.with_extra_args_support(tx)

    def widen(tree: PyTree) -> PyTree:
        return tree_map(lambda leaf: cast(leaf, dtype) if has_16_bits(leaf) else leaf, tree)

    def init_fn(params: PyTree) -> Any:
        master = widen(params)
        if any(map(has_16_bits, leaves(master))):
            raise ValueError(
                "master_weights cannot keep a float32 copy: a pytree node among the params casts "
                "its leaves. Wrap the optimizer of the other params only, with optax.masked."
            )
        inner_state = inner.init(params if narrow_state else master)
        # Copies, so that params, key and state can all be donated.
        if rounding_key is not None:
            return StochasticRoundingState(_copy(rounding_key), inner_state)
        if not copy:
            return RoundingByTurnsState(jnp.zeros((), jnp.int32), inner_state)
        return MasterWeightsState(tree_map(_copy, master), inner_state)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None:
            raise ValueError(
                "master_weights needs the params, and update got none. "
                "Call tx.update(grads, state, params)."
            )
        has_copy = isinstance(state, MasterWeightsState)
        master = tree_map(_follow, state.master, params) if has_copy else widen(params)
        before = state.inner_state
        if narrow_state:
            # What stays narrow inside, as z of schedule_free, would be rounded to nearest there.
            # But a rounded hyperparameter stands for what the user gave.
            given = ids_of_fields(before, {"hyperparams"})
            before = tree_map(lambda leaf: leaf if id(leaf) in given else widen(leaf), before)
        new_updates, inner_state = inner.update(widen(updates), before, master, **extra_args)
        if not same_structure(new_updates, params):
            raise ValueError(
                "master_weights: the updates do not have the structure of the params. "
                "Wrap the whole optimizer, and pass it the params that it was built for."
            )
        if narrow_state:
            inner_state = cast_back(inner_state, state.inner_state)
        state, rounds = _next_roundings(state, params)
        moved = list(map(_move, leaves(params), leaves(master), leaves(new_updates), rounds))
        new_updates = unflatten_like(new_updates, [update for update, _ in moved])
        if has_copy:
            state = state._replace(master=unflatten_like(master, [leaf for _, leaf in moved]))
        return new_updates, state._replace(inner_state=inner_state)

    return kind(init_fn, update_fn)


def _next_roundings(state: Any, params: PyTree) -> tuple[Any, list[Callable[..., Any]]]:
    """Return the state after this step, and for each param how it is rounded in this step."""
    flat = leaves(params)
    if isinstance(state, MasterWeightsState):
        return state, [round_to_nearest] * len(flat)
    shapes = [np.shape(leaf) if has_16_bits(leaf) else () for leaf in flat]
    if isinstance(state, StochasticRoundingState):
        key, random = jax.random.split(state.key)
        state, number = state._replace(key=key), jax.random.bits(random, (), jnp.uint32)
    else:
        number = state.count
        state = state._replace(count=safe_increment(state.count))
    bits = bits_of_elements(number, shapes)
    return state, [functools.partial(round_stochastically, bits=of_leaf) for of_leaf in bits]


def _copy(leaf: Any) -> Any:
    """Copy an array, strongly typed as all params are after a step."""
    if is_number(leaf) and is_weak(leaf):
        return jnp.array(leaf, dtype_of(leaf))
    return jnp.array(leaf) if isinstance(leaf, jax.Array) else leaf


def _follow(master: Any, param: Any) -> Any:
    """Take the param where it is not the rounded copy."""
    if not has_16_bits(param):
        return param
    is_rounded = bits_of(round_to_nearest(master, param.dtype)) == bits_of(param)
    return jnp.where(is_rounded, master, cast(param, master.dtype))


def _move(param: Any, master: Any, update: Any, round_leaf: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the update of a param, and its copy after the step."""
    if not has_16_bits(param):
        return update, _apply(param, update)
    wide = cast(param, master.dtype)
    moved = master + cast(update, master.dtype)
    rounded = round_leaf(moved, param.dtype)
    # In this order a param that stays has the update -0, which changes no number, not even -0.
    update = -(wide - cast(rounded, master.dtype))
    stays_infinite = jnp.isinf(wide) & (bits_of(rounded) == bits_of(param))
    update = jnp.where(stays_infinite, -0.0, update)
    # ``apply_updates`` misses a param that is tiny beside the one before: 1 + (1e-30 - 1) is 0.
    landed = cast(wide + update, param.dtype)
    exact = bits_of(landed) == bits_of(rounded)
    return update, jnp.where(exact, moved, cast(landed, master.dtype))


def _apply(param: Any, update: Any) -> Any:
    """Return a param after its update, as ``optax.apply_updates`` does."""
    if kind_of(dtype_of(update)) < 0:  # float0 is no number.
        return _copy(param)
    return jnp.asarray(param + update).astype(dtype_of(param))


def requested_by(state: PyTree) -> tuple[Any, ...]:
    """List the dtypes of the updates that any ``master_weights`` in a state gives."""

    def asks(node: Any) -> bool:
        return isinstance(node, STATES)

    found = list(filter(asks, jax.tree_util.tree_leaves(state, is_leaf=asks)))
    copies = (dtype_of(leaf) for node in found for leaf in leaves(getattr(node, "master", ())))
    return tuple(dict.fromkeys((jnp.dtype(jnp.float32), *copies))) if found else ()
