"""Makes the installed optax dtype-preserving: ``import optax_dtypefix`` is all it takes.

The import applies what the installed optax needs, as soon as optax is imported, or at once if it is
already. ``status()`` tells what was applied and why; ``OPTAX_DTYPEFIX_DISABLE=<patch id>`` switches a
patch off from the shell.
"""

from optax_dtypefix._api import (
    apply as apply,
    disabled as disabled,
    is_applied as is_applied,
    revert as revert,
    status as status,
)
from optax_dtypefix._errors import (
    OptaxDtypeFixError as OptaxDtypeFixError,
    OptaxDtypeFixWarning as OptaxDtypeFixWarning,
)
from optax_dtypefix._report import PatchStatus as PatchStatus, Report as Report, State as State
from optax_dtypefix._wrapper import original as original

__version__ = "0.1.0"
