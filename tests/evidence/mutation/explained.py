"""Mutants that survive because they change nothing that a test could see, and why."""

from __future__ import annotations

EXPLAINED: dict[tuple[str, str], str] = {}
"""By file and change: why no test can fail."""
