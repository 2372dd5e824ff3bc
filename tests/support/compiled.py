"""Compare compiled programs."""

from __future__ import annotations

import re


def without_metadata(text: str) -> str:
    """Return a program without names of source files and lines, which the shim's frames change."""
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    return "\n".join(line for line in text.splitlines() if not re.match(r"\d+ |[A-Z]\w+$", line))
