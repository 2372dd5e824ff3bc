"""The engine for optax, the only one of the process, made when somebody first wants it.

It brings wrapt and all that patching needs: ``import optax_dtypefix`` must not import this.
"""

from __future__ import annotations

from ._engine.engine import Engine
from ._logging import set_up_logging
from ._settings import SETTINGS
from .patches import IDS, TESTED, load

set_up_logging(SETTINGS.log_level)
ENGINE = Engine("optax", IDS, load, SETTINGS, TESTED)
