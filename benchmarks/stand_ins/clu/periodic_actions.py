"""Report nothing."""

from __future__ import annotations

import contextlib
from typing import Any


class ReportProgress:
    """Accept what nanodo gives."""

    def __init__(self, **_: Any) -> None: ...

    def __call__(self, step: int) -> None:
        """Do nothing at a step."""

    def timed(self, _: str) -> contextlib.AbstractContextManager[None]:
        """Return a context that does nothing."""
        return contextlib.nullcontext()


Profile = ReportProgress
