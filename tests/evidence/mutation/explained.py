"""Mutants that survive because they change nothing that a test could see, and why."""

from __future__ import annotations

EXPLAINED: dict[tuple[str, str], str] = {
    (
        "patches/global_norm.py",
        "name in ('tree_l1_norm', 'tree_l2_norm') and isinstance(found, functools.partial)  ->  "
        "name in ('tree_l1_norm', 'tree_l2_norm') or isinstance(found, functools.partial)",
    ): "Both names are partial objects, and tree_linf_norm takes a maximum, which is exact.",
    (
        "patches/_support/arguments.py",
        "if isinstance(value, jax.core.Tracer):  ->  if True:",
    ): "It saves a cast at run time; stock compares arguments only where all is concrete anyway.",
}
"""By file and change: why no test can fail."""
