"""Notice what a process without patches built, and this one loads from a pickle: it stays stock.

Cloudpickle writes what ``inject_hyperparams`` of stock returns as the code of stock. Loading it
calls no function that a patch wraps.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from ._api import SETTINGS
from ._engine.locate import find
from ._engine.wrapper import PatchedFunction
from ._errors import warn_or_raise

_SAID: set[str] = set()


def builder_elsewhere(function: Any) -> str:
    """Return the patched function that built this one in a process without patches, or nothing.

    Cloudpickle gives the functions that it loads a scope of their own.
    """
    if type(function) is not FunctionType:
        return ""
    scope = function.__globals__
    module = sys.modules.get(str(scope.get("__name__")))
    if module is None or scope is vars(module):
        return ""
    name = str(function.__qualname__).partition(".")[0]
    wrapper = find(module.__name__, name)
    is_patched = type(wrapper) is PatchedFunction and bool(wrapper._self_layers)
    return name if is_patched and "." in function.__qualname__ else ""


def report_stock(tx: Any) -> None:
    """Warn once of each such builder in a transformation that is loaded; in strict mode, raise.

    Raises:
      OptaxDtypeFixError: in strict mode, a process without patches built a part of it.
    """
    from ._engine.built_before import parts_of  # Few programs load a transformation.

    found = set(filter(None, map(builder_elsewhere, parts_of(tx, "optax"))))
    if found and (SETTINGS.strict or not found <= _SAID):
        _SAID.update(found)
        warn_or_raise(
            f"A pickle has a transformation that a process without patches built, and that stays "
            f"stock: {', '.join(sorted(found))}. Build it again here, or import optax_dtypefix in "
            f"the process that builds it.",
            strict=SETTINGS.strict,
        )
