"""Train half-precision params as well as float32 ones: master weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from .dtypes import (
    PyTree,
    cast,
    dtype_of,
    has_16_bits,
    is_number,
    is_weak,
    kind_of,
    leaves,
    same_structure,
    tree_map,
    unflatten_like,
)
from .rounding import bits_of, round_to_nearest
from .wrong_arguments import refuse_no_transformation

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


def master_weights(
    tx: optax.GradientTransformation,
    *,
    dtype: DTypeLike = jnp.float32,
    **removed: Any,
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

    Args:
      tx: anything with ``init`` and ``update``.
      dtype: the dtype of the copy, float32 or float64.
      **removed: any other option raises ``TypeError``, such as those that 1.x had.

    Returns:
      An ``optax.GradientTransformationExtraArgs``; before optax 0.1.5 an
      ``optax.GradientTransformation``. Its updates have the dtype of the copy where params are in
      half precision; other leaves get the updates of ``tx``. ``update`` needs the params, and
      raises ``ValueError`` without them; ``init`` raises it if a pytree node casts the copy to half
      precision. The state is a ``MasterWeightsState``, whose copy takes 4 bytes a param.

    Raises:
      TypeError: ``tx`` is no transformation, or there is no such option.
    """
    import optax

    if removed:
        raise TypeError(
            f"master_weights takes tx and dtype, and got {', '.join(removed)}. Since 2.0 it always "
            f"keeps a copy: write master_weights(tx). To keep none, write tx: optax.apply_updates "
            f"rounds params stochastically, by the patch stochastic_rounding."
        )
    refuse_no_transformation("master_weights({})", tx)
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
        # Copies, so that params and state can both be donated.
        return MasterWeightsState(tree_map(_copy, master), inner.init(master))

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None:
            raise ValueError(
                "master_weights needs the params, and update got none. "
                "Call tx.update(grads, state, params)."
            )
        master = tree_map(_follow, state.master, params)
        new_updates, inner_state = inner.update(
            widen(updates), state.inner_state, master, **extra_args
        )
        if not same_structure(new_updates, params):
            raise ValueError(
                "master_weights: the updates do not have the structure of the params. "
                "Wrap the whole optimizer, and pass it the params that it was built for."
            )
        moved = list(map(_move, leaves(params), leaves(master), leaves(new_updates)))
        new_updates = unflatten_like(new_updates, [update for update, _ in moved])
        new_master = unflatten_like(master, [leaf for _, leaf in moved])
        return new_updates, state._replace(master=new_master, inner_state=inner_state)

    return kind(init_fn, update_fn)


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


def _move(param: Any, master: Any, update: Any) -> tuple[Any, Any]:
    """Return the update of a param, and its copy after the step."""
    if not has_16_bits(param):
        return update, _apply(param, update)
    wide = cast(param, master.dtype)
    moved = master + cast(update, master.dtype)
    rounded = round_to_nearest(moved, param.dtype)
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
        return isinstance(node, MasterWeightsState)

    found = filter(asks, jax.tree_util.tree_leaves(state, is_leaf=asks))
    return tuple(dict.fromkeys(dtype_of(leaf) for node in found for leaf in leaves(node.master)))
