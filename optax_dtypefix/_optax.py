"""The engine for optax: one in a process, made when it is first needed.

It is a module of its own for two reasons. Python's import lock makes it once for all threads. And
it imports wrapt and all that patching needs, which ``import optax_dtypefix`` must not do.
"""

from __future__ import annotations

from ._engine.engine import Engine
from ._logging import set_up_logging
from ._record import after_applying
from ._settings import SETTINGS
from .patches import IDS, TESTED, load

set_up_logging(SETTINGS.log_level)
ENGINE = Engine("optax", IDS, load, SETTINGS, TESTED)
ENGINE.after_applying = after_applying
