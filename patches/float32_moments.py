"""float32_moments: second moments in float32 for half-precision params, for those who ask for it.

v += (1 - b2) (g^2 - v) does not move v by less than half a unit in its last place. bfloat16 has 8
bits, so with b2 = 0.999 v stalls as soon as g^2 / v is below 1 + 2^-9 / 0.001, about 3: for unit
gradients at 0.5, which makes updates 1.4 times too large. float16 has 11 bits, but no small
numbers. optax has ``mu_dtype`` for the first moment, and nothing for the second
(https://github.com/google-deepmind/optax/issues/1552).

Here new states have second moments in float32, twice the memory for them, and stock runs on float32
copies of all that is narrower. A moment restored from a checkpoint keeps the dtype that it has.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from optax_dtypefix._dtypes import dtype_of, is_half, leaves
from optax_dtypefix._patch import Fault, Patch
from optax_dtypefix.patches._moments import FAMILIES, InFloat32, built

_FAMILIES = tuple(family for family in FAMILIES if family.moments)


def _show_narrow_moments() -> str | None:
    params = jax.ShapeDtypeStruct((3, 4), jnp.bfloat16)
    for family in _FAMILIES:
        for tx in () if family.name in _WITH_ARGUMENTS else built(family.name).values():
            state = jax.eval_shape(tx.init, params)
            for name in family.moments:
                narrow = [leaf for leaf in leaves(getattr(state, name)) if is_half(leaf)]
                if narrow:
                    return f"{family.name} keeps {name} in {dtype_of(narrow[0])}"
    return None


def _last_update(tx: Any, gradients: Any) -> float:
    """Of a bfloat16 param, for these gradients one after another."""
    params = jnp.ones((4, 4), jnp.bfloat16)

    def step(state: Any, gradient: Any) -> tuple[Any, Any]:
        updates, state = tx.update(jnp.full_like(params, gradient), state, params)
        return state, updates[0, 0]

    _, updates = jax.jit(lambda: jax.lax.scan(step, tx.init(params), gradients))()
    return float(updates[-1])


def _show_stalled_moment() -> str | None:
    import optax

    got = _last_update(optax.scale_by_adam(mu_dtype=jnp.float32), jnp.ones(5000))
    if not 0.99 < got < 1.01:
        return f"after 5000 gradients of 1 the update is {got:.3g}, not 1"
    return None


def _show_stalled_sum() -> str | None:
    import optax

    got, exact = _last_update(optax.scale_by_rss(), jnp.ones(1000)), 1000.1**-0.5
    if not 0.99 < got / exact < 1.01:
        return f"after 1000 gradients of 1 the update is {got:.3g}, not {exact:.3g}"
    return None


def _show_stalled_factors() -> str | None:
    import optax

    tx = optax.scale_by_factored_rms(min_dim_size_to_factor=2)
    got = _last_update(tx, jnp.where(jnp.arange(2000) < 100, 1.0, 2.0))
    if not 0.99 < got < 1.01:
        return f"after 100 gradients of 1 and 1900 of 2 the update is {got:.3g}, not 1"
    return None


_WITH_ARGUMENTS = ("scale_by_madgrad",)
_ISSUE = "https://github.com/google-deepmind/optax/issues/1552"

PATCH = Patch(
    id="float32_moments",
    summary=(
        "second moments in half precision stall: with bfloat16 params adam's updates become 1.4 "
        "times too large, adagrad's sum stops at 256"
    ),
    independent=True,
    faults=(
        Fault(
            "narrow_moments",
            "second moments of half-precision params are kept in half precision",
            ">=0.1.2",
            _show_narrow_moments,
            _ISSUE,
        ),
        # v = 0.5 has neighbours 2^-8 apart above it: 0.001 (1 - 0.5) = 0.0005 is rounded away.
        Fault(
            "stalled_moment",
            "adam: with bfloat16 params and steady gradients updates are 1.4 times too large",
            ">=0.1.2",
            _show_stalled_moment,
            _ISSUE,
            abstract=False,
        ),
        # The numbers above 256 are 2 apart: 256 + 1 is 256.
        Fault(
            "stalled_sum",
            "adagrad: with bfloat16 params the sum of squares stops growing",
            ">=0.1.2",
            _show_stalled_sum,
            abstract=False,
        ),
        # As in adam, but with a decay that tends to 1. Up to 0.2.3 the factors are float32.
        Fault(
            "stalled_factors",
            "adafactor: with bfloat16 params the factors of the second moment stall",
            ">=0.2.4",
            _show_stalled_factors,
            abstract=False,
        ),
    ),
    targets=tuple(InFloat32(f, is_half, wide_moments=True).target() for f in _FAMILIES),
    opt_in=True,
)
