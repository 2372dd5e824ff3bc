"""Make the installed optax dtype-preserving: ``import optax_dtypefix`` is all it takes.

The import applies the patches that the installed optax needs: as soon as optax is imported, or now
if it is imported already. ``status()`` reports what was applied and why.
``OPTAX_DTYPEFIX_DISABLE=<patch id>`` switches a patch off from the shell.
"""

import os
from typing import TYPE_CHECKING

# First: if optax is imported already, the imports below patch it and report the version.
__version__ = "1.1.0"

# An installation has ``patches`` inside this folder, a clone beside it. Look there before anywhere
# else: with an editable installation of another clone, Python would find the patches of that one.
try:
    __path__.append(os.path.dirname(__path__[0]))
    from .patches import __path__ as _found

    if os.path.dirname(_found[0]) not in __path__:
        raise ImportError(
            f"optax_dtypefix was imported from {__path__[0]}, which has no patches, and would run "
            f"those in {_found[0]}. Take {__path__[1]} off the path, or install it again."
        )
finally:
    __path__.pop()
from ._errors import (
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
        status as status,
    )
except OptaxDtypeFixError as error:  # A typo in a variable: our frames would hide the message.
    raise error.with_traceback(None) from None

if TYPE_CHECKING:
    from ._contract.master_weights import (
        MasterWeightsState as MasterWeightsState,
        RoundingByTurnsState as RoundingByTurnsState,
        StochasticRoundingState as StochasticRoundingState,
        master_weights as master_weights,
    )
    from ._contract.migrate import (
        StateChange as StateChange,
        migrate_state as migrate_state,
    )
    from ._contract.preserve import preserve_dtypes as preserve_dtypes
    from ._diagnosis.check import check as check
    from ._diagnosis.result import (
        Check as Check,
        ValueCheck as ValueCheck,
        ValueProblem as ValueProblem,
        Violation as Violation,
    )
    from ._diagnosis.values import check_values as check_values
    from ._engine.report import (
        PatchStatus as PatchStatus,
        Report as Report,
    )
    from ._engine.state import State as State
    from ._multihost import (
        assert_same_on_all_processes as assert_same_on_all_processes,
    )
else:
    # Imported on first use: some of these import jax, and few programs use them.
    _LATER = {
        "check": "_diagnosis.check",
        **dict.fromkeys(("Check", "ValueCheck", "ValueProblem", "Violation"), "_diagnosis.result"),
        **dict.fromkeys(
            (
                "MasterWeightsState",
                "RoundingByTurnsState",
                "StochasticRoundingState",
                "master_weights",
            ),
            "_contract.master_weights",
        ),
        **dict.fromkeys(("StateChange", "migrate_state"), "_contract.migrate"),
        "preserve_dtypes": "_contract.preserve",
        "check_values": "_diagnosis.values",
        "assert_same_on_all_processes": "_multihost",
        **dict.fromkeys(("PatchStatus", "Report"), "_engine.report"),
        "State": "_engine.state",
    }

    def __getattr__(name):
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)

    def __dir__():
        return sorted({*globals(), *_LATER})


__all__ = (
    "Check",
    "MasterWeightsState",
    "OptaxDtypeFixError",
    "OptaxDtypeFixWarning",
    "PatchStatus",
    "Report",
    "RoundingByTurnsState",
    "State",
    "StateChange",
    "StochasticRoundingState",
    "ValueCheck",
    "ValueProblem",
    "Violation",
    "apply",
    "assert_same_on_all_processes",
    "check",
    "check_values",
    "disabled",
    "is_applied",
    "master_weights",
    "migrate_state",
    "original",
    "preserve_dtypes",
    "revert",
    "status",
)
