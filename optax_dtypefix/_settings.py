"""Hold what the user set in the ``OPTAX_DTYPEFIX*`` environment variables."""

from __future__ import annotations

import os
import sys
import warnings
from typing import NamedTuple

from ._errors import OptaxDtypeFixWarning


class Settings(NamedTuple):
    """What the user set in the environment.

    ``only``, ``log_level``, ``report`` and ``require`` are None if that variable is not set.
    """

    enabled: bool = True
    disable: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    enable: frozenset[str] = frozenset()
    strict: bool = False
    log_level: str | None = None
    report: str | None = None
    require: str | None = None

    def disabled_reason(self, patch_id: str) -> str | None:
        """Return why the environment switches this patch off, as text, or None if it does not."""
        if not self.enabled:
            return "switched off by OPTAX_DTYPEFIX=off"
        if patch_id in self.disable:
            return "switched off by OPTAX_DTYPEFIX_DISABLE"
        if self.only is not None and patch_id not in self.only:
            return "not in OPTAX_DTYPEFIX_ONLY"
        return None

    def opted_in(self, patch_id: str) -> bool:
        """Return whether a variable names this patch: the way to switch an opt-in patch on."""
        return patch_id in self.enable or (self.only is not None and patch_id in self.only)


def _read() -> Settings:
    if not any(variable.startswith("OPTAX_") for variable in os.environ):
        return Settings()
    from ._commands.exit import is_command  # Few programs set a variable.
    from ._environment import read_variables
    from .patches import IDS

    if sys.argv[1:2] == ["run"] and is_command():  # The program that it becomes warns.
        warnings.simplefilter("ignore", OptaxDtypeFixWarning)
    return Settings(**read_variables(os.environ, IDS))


# Read while ``import optax_dtypefix`` runs: a malformed variable must stop the program there, and
# later changes of ``os.environ`` must not give half of the program other settings.
SETTINGS = _read()
