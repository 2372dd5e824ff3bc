"""The logger ``optax_dtypefix``. Not in ``_errors``: ``import optax_dtypefix`` needs no logging."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("optax_dtypefix")
