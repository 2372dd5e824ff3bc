"""The engine for optax, the only one of the process, made when somebody first wants it.

It brings wrapt and all that patching needs: ``import optax_dtypefix`` must not import this.
"""

from __future__ import annotations

from optax_dtypefix._engine import Engine
from optax_dtypefix._environment import SETTINGS
from optax_dtypefix._log import set_up_logging
from optax_dtypefix.patches import IDS, load

set_up_logging(SETTINGS.log_level)
ENGINE = Engine("optax", IDS, load, SETTINGS)
