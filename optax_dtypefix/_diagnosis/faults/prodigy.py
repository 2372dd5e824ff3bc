"""Reproduce the faults of ``prodigy``."""

from __future__ import annotations

from typing import Any

from . import _reproduce as demo


def _build(optax: Any) -> Any:
    return demo.public(optax, "contrib.prodigy")()


_MAY_DIVIDE_BY_0 = demo.operation(
    "The distance is divided by a sum of gradients",
    _build,
    demo.is_quotient_of_sums,
    demo.shapes("float32"),
)


def _zero_gradient(optax: Any) -> Any:
    updates, state = demo.steps(_build(optax), demo.ones("float32"), [0.0])
    return [updates, state.estim_lr]


FAULTS = {
    "float64": demo.step(
        "float32 params in 64-bit mode: float64 in state and updates",
        _build,
        "float32",
        in_x64=True,
    ),
    "float64_params": demo.step(
        "float64 params: the state changes from float32 to float64",
        _build,
        "float64",
        in_x64=True,
    ),
    "promoted_updates": demo.step("float32 updates for bfloat16 params", _build, "bfloat16"),
    "mixed_tree": demo.step(
        "Leaves of different dtypes: the state changes dtype, or updates are promoted",
        _build,
        *("bfloat16", "float32"),
        float32_fields=("estim_lr",),
    ),
    "narrow_scalars": demo.narrow_fields(
        "Distance estimates are kept in the lowest dtype of the params",
        _build,
        *("bfloat16", "int32"),
        names=("estim_lr",),
    ),
    "zero_gradient": demo.not_finite(
        "Zero gradients in the first step: 0/0, NaN from then on",
        "a zero gradient in the first step gives nan updates",
        _zero_gradient,
    )._replace(probe=_MAY_DIVIDE_BY_0.run),
}
