"""The logger ``optax_dtypefix``. Not in ``_errors``: ``import optax_dtypefix`` needs no logging."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("optax_dtypefix")


def set_up_logging(level: str | None) -> None:
    """Set the level that the user asked for; without one, the level is left to the program.

    Records propagate. Those below warning are also shown on stderr, but only until the program
    configures logging: Python itself shows no such record in an unconfigured program.
    """
    if level is None:
        return
    LOGGER.setLevel(level.upper())
    if level != "warning" and not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        handler.addFilter(
            lambda _: LOGGER.handlers == [handler] and not logging.getLogger().handlers
        )
        LOGGER.addHandler(handler)
