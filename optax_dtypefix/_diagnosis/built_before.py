"""Find what stock functions built before they were patched, in a transformation of the user's."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from .._engine.still_stock import held_by, name_of

if TYPE_CHECKING:
    from .._engine.patch_points import PatchPoints


def list_built_before(value: Any, points: PatchPoints) -> tuple[str, ...]:
    """Name the functions that built parts of a value before they were patched."""
    parts = {part for part in held_by(value) if type(part) in (FunctionType, MethodType)}
    built = (w for w in points.wrappers() if not parts.isdisjoint(w._self_built))
    return tuple(sorted(set(map(name_of, built))))
