"""global_norm: norms and the functions that clip or scale by them sum in float32.

Stock squares each leaf and adds up in the dtype of the leaves. In float16, 256^2 = 65536 is above
the largest number, 65504. So a norm above 255 is infinite, g / inf = 0, and clipping turns every
update into zero without a warning. 1e-4^2 = 1e-8 is less than half the smallest number, 6e-8: a
small norm is 0. bfloat16 has 8 bits: 256 + 1 == 256, and the sum over many leaves stops.

Here stock runs on float32 copies of the half-precision leaves. A norm that you compute yourself has
stock's dtype, or ``g / optax.global_norm(grads)`` would be float32. So a float16 norm above 65504
is still infinite: take the norm of float32 copies there.

Gradients of 0 have the norm 0, and 0/0 is nan, in every dtype: in ``contrib.normalize``, and where
the limit of ``clip_by_global_norm`` or ``clip_by_block_rms`` is 0, as at the end of a schedule.
Here such updates are 0.

No upstream issue was found.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import PyTree, leaves, tree_map, unflatten_like
from .._engine.patch import Stock
from .._errors import warn_the_user
from .._tally import Tally
from .sums import in_float32, trees_in_float32  # noqa: F401  # For ``wrapped.py``.


def _without_nan(
    tx: Any, arguments: dict[str, Any], tally: Tally, *, limited_by: str = "", by_leaf: bool = False
) -> Any:
    """Let updates be 0 where the norm is, unless a positive argument prevents 0/0.

    Args:
      tx: the transformation, as stock builds it.
      arguments: of the function of optax that builds it.
      tally: of the patch.
      limited_by: the name of that argument.
      by_leaf: whether each leaf has a norm of its own.
    """
    if limited_by and _is_positive(arguments[limited_by]):
        return tx

    @functools.wraps(tx.update)
    def update_fn(updates: PyTree, *args: Any, **kwargs: Any) -> tuple[PyTree, Any]:
        tally.reach()
        new_updates, state = tx.update(updates, *args, **kwargs)
        return _zero_if_norm_is(new_updates, updates, by_leaf=by_leaf), state

    return tx._replace(update=update_fn)


def normalize(tx: Any, arguments: dict[str, Any], tally: Tally) -> Any:
    """Divide by the norm. Not by stock: 0.1.8 and 0.1.9 need a jax that has tree_map."""
    import optax

    @functools.wraps(tx.update)
    def update_fn(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        del params
        tree = getattr(optax, "tree", None)
        norm_of = getattr(tree, "norm", None) or optax.global_norm
        norm = norm_of(leaves(updates))  # 0.2.5 would put sums into the user's nodes.
        return tree_map(lambda g: g / norm, updates), state

    return _without_nan(tx._replace(update=update_fn), arguments, tally)


clip_by_global_norm = functools.partial(_without_nan, limited_by="max_norm")
clip_by_block_rms = functools.partial(_without_nan, limited_by="threshold", by_leaf=True)
normalize_by_update_norm = functools.partial(_without_nan, limited_by="eps")


def _is_positive(limit: Any) -> bool:
    """Check whether a limit is known to be positive: a schedule may give 0 in a later step."""
    try:
        return bool(np.all(np.asarray(limit) > 0))
    except Exception:  # A tracer, or on another host.
        return False


def _zero_if_norm_is(updates: PyTree, grads: PyTree, *, by_leaf: bool = False) -> PyTree:
    """Replace what is not finite by 0 where the norm of the gradients is 0; keep all else."""
    zero = [jnp.all(jnp.real(g * jnp.conj(g)) == 0) for g in leaves(grads)]
    if not by_leaf:
        zero = [functools.reduce(jnp.logical_and, zero)] * len(zero) if zero else []
    flat = zip(leaves(updates), zero)
    return unflatten_like(
        updates,
        [jnp.where(no_norm & ~jnp.isfinite(u), jnp.zeros_like(u), u) for u, no_norm in flat],
    )


def per_example(stock: Stock, grads: PyTree, *args: Any, **kwargs: Any) -> Any:
    """Up to 0.2.3, return a list for any sequence of gradients, as stock does."""
    return trees_in_float32(
        stock, list(grads) if isinstance(grads, tuple) else grads, *args, **kwargs
    )


def _deprecated_attribute(stock: Stock, module: str, name: str) -> Any:
    """Return a deprecated attribute of a module, with its warning for the line that reads it.

    Stock counts frames to find that line, and would blame ours, which Python does not show.
    """
    message, found = getattr(sys.modules[module], "_deprecations", {}).get(name, ("", None))
    if found is None:
        return stock(name)  # Raises AttributeError.
    warn_the_user(DeprecationWarning(message))
    return found


def deprecated_name(stock: Stock, name: str) -> Any:
    """Rebuild a deprecated name: from 0.2.5 on, a partial object of stock's ``tree_norm``."""
    import optax

    found = _deprecated_attribute(stock, "optax.tree_utils", name)
    if name in ("tree_l1_norm", "tree_l2_norm"):  # Partial objects in all these releases.
        return functools.partial(optax.tree_utils.tree_norm, **found.keywords)
    return found
