"""Import optax the way every command needs it."""

from __future__ import annotations

import contextlib
import importlib


class NoOptaxError(Exception):
    """There is no optax that can be imported; the message says why."""

    def __str__(self) -> str:
        return f"optax cannot be imported: {super().__str__()}"


def import_optax() -> None:
    """Import optax, and ``optax.contrib``, which old releases do not import themselves."""
    importlib.import_module("optax")
    with contextlib.suppress(ImportError):
        importlib.import_module("optax.contrib")
