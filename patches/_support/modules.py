"""List the modules of optax that define what the patches replace, newest layout first.

The first module that defines a function counts, so one tuple may serve several of them.
"""

from __future__ import annotations

ACCUMULATION = ("optax.transforms._accumulation", "optax._src.wrappers", "optax._src.transform")
ADDING = ("optax.transforms._adding", "optax._src.transform")
ALIAS = ("optax._src.alias",)
BASE = ("optax._src.base",)
CLIPPING = ("optax.transforms._clipping", "optax._src.clipping")
COMBINING = ("optax.transforms._combining", "optax._src.combine")
CONDITIONALITY = ("optax.transforms._conditionality", "optax._src.wrappers")
FACTORIZED = ("optax._src.factorized",)
LAYOUTS = ("optax.transforms._layouts", "optax._src.wrappers")
LINEAR_ALGEBRA = ("optax._src.linear_algebra",)
LINESEARCH = ("optax._src.linesearch", "optax._src.utils")
LOOKAHEAD = ("optax._src.lookahead",)
MASKING = ("optax.transforms._masking", "optax._src.wrappers")
LOSSES = ("optax.losses._regression", "optax._src.loss")
MICROBATCHING = ("optax.microbatching._microbatching",)
MONITORING = ("optax.transforms._monitoring",)
NUMERICS = ("optax._src.numerics",)
PROJECTIONS = ("optax.projections._projections",)
SCHEDULES = (
    "optax.schedules._schedule",
    "optax.schedules._join",
    "optax.schedules._inject",
    "optax.schedules._stateful",
    "optax._src.schedule",
)
SECOND_ORDER = (
    "optax.second_order._deprecated",
    "optax.second_order._hessian",
    "optax._src.second_order",
)
TRANSFORM = ("optax._src.transform",)
TREE_MATH = ("optax.tree_utils._tree_math",)
UPDATE = ("optax._src.update",)


def contrib(name: str) -> tuple[str, ...]:
    """List where a module of ``optax.contrib`` stands, and where it stood before."""
    folders = ("optax.contrib._", "optax.contrib.", "optax._src.contrib.", "optax._src.")
    return tuple(folder + name for folder in folders)
