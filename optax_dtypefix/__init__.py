"""Make the installed optax dtype-preserving: ``import optax_dtypefix`` is all it takes.

The import applies the patches that the installed optax needs: as soon as optax is imported, or now
if it is imported already. ``status()`` reports what was applied and why.
``OPTAX_DTYPEFIX_DISABLE=<patch id>`` switches a patch off from the shell.
"""

import os
from typing import TYPE_CHECKING

# First: if optax is imported already, the imports below patch it and report the version.
__version__ = "3.0.0"

# An installation has ``patches`` inside this folder, a clone beside it. Look there before anywhere
# else: with an editable installation of another clone, Python would find the patches of that one.
__path__.append(os.path.dirname(__path__[0]))
from . import patches as _patches  # noqa: E402, F401

__path__.pop()
from ._errors import (  # noqa: E402
    OptaxDtypeFixError as OptaxDtypeFixError,
    OptaxDtypeFixWarning as OptaxDtypeFixWarning,
)

try:
    from ._api import (
        apply as apply,
        disabled as disabled,
        is_applied as is_applied,
        original as original,
        revert as revert,
        start as _start,
        status as status,
    )

    _RECORD = _start()
except OptaxDtypeFixError as error:  # A typo in a variable, for example.
    from ._environment import refusal

    # In the traceback of a program, our frames would hide the message.
    raise refusal(error).with_traceback(None) from None

if TYPE_CHECKING:
    from ._contract.master_weights import (
        MasterWeightsState as MasterWeightsState,
        master_weights as master_weights,
    )
    from ._contract.migrate import (
        StateChange as StateChange,
        migrate_state as migrate_state,
    )
    from ._contract.preserve import preserve_dtypes as preserve_dtypes
    from ._diagnosis.check import check as check
    from ._diagnosis.report import (
        PatchStatus as PatchStatus,
        Report as Report,
    )
    from ._diagnosis.result import (
        Check as Check,
        Violation as Violation,
    )
    from ._engine.state import State as State
    from ._multihost import (
        assert_same_on_all_processes as assert_same_on_all_processes,
    )

# Imported on first use: some of these import jax, and few programs use them.
_LATER = {
    "_diagnosis.check": ("check",),
    "_contract.master_weights": ("MasterWeightsState", "master_weights"),
    "_contract.migrate": ("StateChange", "migrate_state"),
    "_contract.preserve": ("preserve_dtypes",),
    "_diagnosis.report": ("PatchStatus", "Report"),
    "_diagnosis.result": ("Check", "Violation"),
    "_engine.state": ("State",),
    "_multihost": ("assert_same_on_all_processes",),
}
__all__ = (  # noqa: PLE0604  # Each of them is a string.
    "OptaxDtypeFixError",
    "OptaxDtypeFixWarning",
    "apply",
    "disabled",
    "is_applied",
    "original",
    "revert",
    "status",
    *(name for names in _LATER.values() for name in names),
)

if not TYPE_CHECKING:  # Type checkers would accept any name.

    def __getattr__(name):
        for module, names in _LATER.items():
            if name in names:
                import importlib

                return getattr(importlib.import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
