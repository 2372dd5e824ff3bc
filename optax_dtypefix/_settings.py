"""Hold what the user set in the ``OPTAX_DTYPEFIX*`` variables; ``_environment`` reads them."""

from __future__ import annotations

from typing import NamedTuple


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
