"""Makes the installed optax dtype-preserving: ``import optax_dtypefix`` is all it takes.

The import applies what the installed optax needs, as soon as optax is imported, or at once if it
is already. ``status()`` tells what was applied and why; ``OPTAX_DTYPEFIX_DISABLE=<patch id>``
switches a patch off from the shell.
"""

from typing import TYPE_CHECKING

from optax_dtypefix._api import (
    apply as apply,
    disabled as disabled,
    is_applied as is_applied,
    original as original,
    revert as revert,
    status as status,
)
from optax_dtypefix._errors import (
    OptaxDtypeFixError as OptaxDtypeFixError,
    OptaxDtypeFixWarning as OptaxDtypeFixWarning,
)

if TYPE_CHECKING:
    from optax_dtypefix._report import (
        PatchStatus as PatchStatus,
        Report as Report,
        State as State,
    )
else:

    def __getattr__(name):  # Only who reads a report needs its types.
        if name not in ("PatchStatus", "Report", "State"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from optax_dtypefix import _report

        return getattr(_report, name)


__version__ = "0.1.0"
