"""The logger ``optax_dtypefix``. Not in ``_errors``: ``import optax_dtypefix`` needs no logging."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("optax_dtypefix")


def set_up_logging(level: str) -> None:
    """Set the level. For a level below warning, also show the messages on stderr.

    With the default, ``WARNING``, a level that the program has set already is kept.
    """
    if level != "WARNING" or LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(level)
    if level != "WARNING" and not LOGGER.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        LOGGER.addHandler(handler)
        LOGGER.propagate = False
