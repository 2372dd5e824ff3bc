"""The one engine of this process, made when it is first needed.

It is a module of its own for two reasons. Python's import lock makes it once for all threads. And
it imports wrapt and all that patching needs, which ``import optax_dtypefix`` must not do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._engine.engine import Engine
from ._logging import set_up_logging
from ._settings import SETTINGS
from .patches import IDS, load
from .patches.catalogue import REMOVED
from .patches.releases import TESTED

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def _probing() -> AbstractContextManager[None]:
    from ._contract.modes import default_modes  # Imports JAX: only once a patch did.

    return default_modes()


set_up_logging(SETTINGS.log_level)
ENGINE = Engine("optax", IDS, load, SETTINGS, TESTED, _probing, REMOVED)
