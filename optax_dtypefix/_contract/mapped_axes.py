"""Find the mapped axes over which numbers vary, so that what is equal on all replicas stays so."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

import jax
import jax.custom_batching
from jax import lax


def are_told() -> bool:
    """Check whether JAX says over which mapped axes numbers vary."""
    core: Any = sys.modules.get("jax._src.core")
    try:
        if hasattr(core, "get_axis_env"):
            axes = list(core.get_axis_env().axis_sizes)
        else:  # Before jax 0.4.36. The axes of ``vmap`` have this name unless they have their own.
            frames = core.thread_local_state.trace_state.axis_env
            axes = [frame.name for frame in frames if frame.name is not core.no_axis_name]
    except AttributeError:  # Another version of JAX.
        return False
    if not hasattr(jax, "typeof"):
        return not axes
    return all(axis in axes_of(lax.axis_index(axis)) for axis in axes)


def axes_of(number: Any) -> frozenset[Any]:
    """Return the mapped axes on which a number depends, as ``jax.shard_map`` checks it."""
    aval: Any = getattr(number, "aval", None)
    if hasattr(aval, "manual_axis_type"):
        return frozenset(aval.manual_axis_type.varying)
    return frozenset(getattr(aval, "vma", ()))  # Before jax 0.10.


def tell_axes(starts: Callable[..., Any], axes: tuple[frozenset[Any], ...]) -> Callable[..., Any]:
    """Tell a function of rows of arrays over which axes each varies, those of a later ``vmap`` too.

    Args:
      starts: ``starts(axes, rows)`` returns a number for each row.
      axes: for each row, those over which it varies here.
    """
    lent = jax.custom_batching.custom_vmap(functools.partial(starts, axes))

    @lent.def_vmap
    def _map(_: int, are_mapped: Any, rows: list[list[Any]]) -> Any:
        mapped, axis = list(map(any, are_mapped[0])), object()
        ways = [[0 if is_mapped else None for is_mapped in row] for row in are_mapped[0]]

        def each(axes: Any, rows: Any) -> Any:
            of_each = functools.partial(starts, axes)
            out = [0 if is_mapped else None for is_mapped in mapped]
            return jax.vmap(of_each, (ways,), out)(rows)

        varying = tuple(old | {axis} if new else old for old, new in zip(axes, mapped))
        return tell_axes(each, varying)(rows), mapped

    return lent
