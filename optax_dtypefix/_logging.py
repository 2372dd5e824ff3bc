"""The logger ``optax_dtypefix``. Not in ``_errors``: ``import optax_dtypefix`` needs no logging."""

from __future__ import annotations

import logging
import sys

LOGGER = logging.getLogger("optax_dtypefix")


def set_up_logging(level: str | None) -> None:
    """Set the level that the user asked for; without one, the level is left to the program.

    Records propagate. Those below warning are also shown on stderr, but only until the program
    configures logging: Python itself shows no such record in an unconfigured program.
    """
    if level is None:
        return
    LOGGER.setLevel(level)
    if level != "WARNING" and not LOGGER.hasHandlers():
        LOGGER.addHandler(_UntilConfigured())


class _UntilConfigured(logging.Handler):
    """Write to stderr as long as no other handler would."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or LOGGER.handlers != [self] or sys.stderr is None:
            return
        try:
            print(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)
