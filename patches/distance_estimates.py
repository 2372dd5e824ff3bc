"""distance_estimates: dadapt_adamw, dog, dowg, momo, momo_adam, mechanize keep float32 scalars.

These optimizers find their step size from sums over all steps (D-Adaptation,
https://arxiv.org/abs/2301.07733; DoG, https://arxiv.org/abs/2302.12022; DoWG,
https://arxiv.org/abs/2305.16284), averages (MoMo, https://arxiv.org/abs/2305.07583) or a bet
(Mechanic, https://arxiv.org/abs/2306.00144).

From 0.2.4 on stock keeps these scalars in the lowest dtype of the params. In bfloat16 a sum of
equal terms stops at 256 terms. In float16 a first distance of 1e-6 and an eps of 1e-8 are 0, and
0/0 is nan. An integer leaf makes the scalars integers. Up to 0.2.3 updates of bfloat16 params are
float32, and float64 in 64-bit mode.

Here stock runs in 32-bit mode on copies of all leaves in float32, or in float64 if one leaf is.
``dadapt_adamw`` and ``prodigy`` divide by the sum of all gradients. As long as it is 0, the
estimate stays, and what is not finite in an update of ``prodigy`` is 0.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import PyTree, cast, cast_like, dtype_of, is_real, leaves, tree_map
from .._contract.widths import compute_dtype, promoted, statistics_dtype
from .._engine.patch import Stock
from .._tally import Tally
from .door.arguments import array_in
from .door.lifts import BETS, FLOAT16

_COPIES = frozenset({"init_params", "params0", "x0"})
"""Fields of stock's states with a copy of the first params."""

_AVERAGES = frozenset({"exp_avg", "exp_avg_sq", "grad_sum"})


def change(tx: Any, arguments: dict[str, Any], tally: Tally) -> Any:
    """Keep copies of integers, and the estimate where stock divides by 0; accept any loss.

    A new state has its scalars in float32, or in float64 if all params are, on all releases.
    """

    @functools.wraps(tx.init)
    def init_fn(params: PyTree) -> Any:
        state, dtype = tx.init(params), statistics_dtype(params)
        scalars = {name: x for name, x in state._asdict().items() if _is_statistic(name, x)}
        if "estim_lr" in scalars:
            scalars["estim_lr"] = arguments.get("estim_lr0", state.estim_lr)
        fields = {name: cast(x, dtype) for name, x in scalars.items()}
        for name in _AVERAGES.intersection(state._fields):  # float32 up to 0.2.3.
            fields[name] = tree_map(_as_wide, getattr(state, name), params)
        return state._replace(**fields)

    @functools.wraps(tx.update)
    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if "value" in extra_args:
            extra_args["value"] = _cast_loss(extra_args["value"], params)
        new_updates, new_state = tx.update(updates, state, params, **extra_args)
        for name in _COPIES.intersection(state._fields):
            copies = cast_like(getattr(new_state, name), getattr(state, name))
            new_state = new_state._replace(**{name: copies})
        if not hasattr(state, "estim_lr"):
            return new_updates, new_state
        tally.reach()
        return _guard(new_updates, new_state, state)

    return tx._replace(init=init_fn, update=update_fn)


def _as_wide(average: Any, param: Any) -> Any:
    if not (is_real(average) and is_real(param)):
        return average
    return cast(average, promoted(dtype_of(average), dtype_of(param)))


def _is_statistic(name: str, field: Any) -> bool:
    is_number = isinstance(field, jax.Array) and is_real(field)
    return is_number and (name in BETS or (not field.shape and name not in _COPIES))


def _cast_loss(value: Any, params: PyTree) -> Any:
    """Cast a loss to float32. 0.2.5 and 0.2.6 need a NumPy method, which Python numbers lack."""
    if not hasattr(value, "dtype"):
        return np.float64(value)
    return array_in(value, compute_dtype(params))


def _guard(updates: PyTree, state: Any, before: Any) -> tuple[PyTree, Any]:
    """Keep the estimate where stock divides by a sum of gradients that is 0.

    What comes from a NaN or inf among the gradients stays: the numerator has it too.
    """
    is_unknown = jnp.isfinite(state.numerator_weighted) & ~jnp.isfinite(state.estim_lr)

    def finite(update: Any) -> Any:
        is_bad = is_unknown & ~jnp.isfinite(update)
        return jnp.where(is_bad, jnp.zeros_like(update), update)

    if hasattr(state, "params0"):  # Those of prodigy contain the estimate, of dadapt_adamw do not.
        updates = tree_map(finite, updates)
    estimate = jnp.where(is_unknown, before.estim_lr, state.estim_lr)
    return updates, state._replace(estim_lr=estimate)


def averages(state: type, _: tuple[Any, ...], dtype: Any) -> tuple[str, ...]:
    """List the averages of Adam in float16, where the square of a gradient is 0."""
    found = _AVERAGES.intersection(state._fields)  # type: ignore[attr-defined]
    return tuple(found) if dtype in FLOAT16 and "exp_avg_sq" in found else ()


def tree_norm(stock: Stock, tree: PyTree) -> Any:
    """Replace the norm of ``mechanize`` in 0.1.7, which newer jax cannot run."""
    try:
        return stock(tree)
    except AttributeError:
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves(tree)))
