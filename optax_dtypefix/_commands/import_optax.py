"""Import optax the way every command needs it."""

from __future__ import annotations

import contextlib
import importlib


def import_optax() -> None:
    """Import optax, and ``optax.contrib``, which old releases do not import themselves."""
    importlib.import_module("optax")
    with contextlib.suppress(ImportError):
        importlib.import_module("optax.contrib")
