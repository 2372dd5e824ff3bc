"""The logger ``optax_dtypefix``. Apart from the errors, so that the import can do without it."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("optax_dtypefix")


def set_up_logging(level: str) -> None:
    """Sets the level; below warning, also shows the messages, since someone asked to see them.

    A level that the program has set stands if nobody asked for more than warnings.
    """
    if level != "WARNING" or LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(level)
    if level != "WARNING" and not LOGGER.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        LOGGER.addHandler(handler)
        LOGGER.propagate = False
