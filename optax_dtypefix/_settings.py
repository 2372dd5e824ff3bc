"""Read the ``OPTAX_DTYPEFIX*`` environment variables, once and strictly.

A malformed value raises :class:`OptaxDtypeFixError`, which names the variable, the value and the
allowed values. An unknown patch id is a warning that suggests the nearest id, or an error in strict
mode.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ._errors import OptaxDtypeFixError, raise_or_exit, warn_or_raise
from ._text import closest, suggest
from .patches import IDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_T = TypeVar("_T")
_PREFIX = "OPTAX_DTYPEFIX"
_SWITCH = {"on": True, "off": False}
_STRICT = {"0": False, "1": True}
_LEVELS: dict[str, str | None] = {"warning": "WARNING", "info": "INFO", "debug": "DEBUG"}


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
            return f"switched off by {_PREFIX}=off"
        if patch_id in self.disable:
            return f"switched off by {_PREFIX}_DISABLE"
        if self.only is not None and patch_id not in self.only:
            return f"not in {_PREFIX}_ONLY"
        return None

    def opted_in(self, patch_id: str) -> bool:
        """Return whether a variable names this patch: the way to switch an opt-in patch on."""
        return patch_id in self.enable or (self.only is not None and patch_id in self.only)

    def variables(self) -> dict[str, str]:
        """Return the variables that are not at their defaults, and their effective values."""
        values = {
            "": None if self.enabled else "off",
            "_DISABLE": ",".join(sorted(self.disable)) or None,
            "_ONLY": None if self.only is None else ",".join(sorted(self.only)),
            "_ENABLE": ",".join(sorted(self.enable)) or None,
            "_STRICT": "1" if self.strict else None,
            "_LOG": self.log_level and self.log_level.lower(),
            "_REPORT": self.report,
            "_REQUIRE": self.require,
        }
        return {_PREFIX + suffix: value for suffix, value in values.items() if value is not None}


def read_settings(environment: Mapping[str, str], known_ids: Sequence[str]) -> Settings:
    """Read every ``OPTAX_DTYPEFIX*`` variable.

    Raises:
      OptaxDtypeFixError: a value is malformed; in strict mode, an id or a variable is unknown.
    """
    strict = _choice(environment, f"{_PREFIX}_STRICT", _STRICT, default=False)
    _check_names(environment, strict=strict)

    def ids(variable: str) -> frozenset[str] | None:
        return _ids(environment, variable, known_ids, strict=strict)

    return Settings(
        enabled=_choice(environment, _PREFIX, _SWITCH, default=True),
        disable=ids(f"{_PREFIX}_DISABLE") or frozenset(),
        only=ids(f"{_PREFIX}_ONLY"),
        enable=ids(f"{_PREFIX}_ENABLE") or frozenset(),
        strict=strict,
        log_level=_choice(environment, f"{_PREFIX}_LOG", _LEVELS, default=None),
        report=_path(environment, f"{_PREFIX}_REPORT"),
        require=_path(environment, f"{_PREFIX}_REQUIRE"),
    )


def _path(environment: Mapping[str, str], variable: str) -> str | None:
    """Return the path that a variable names, absolute: the program may change its folder."""
    value = environment.get(variable, "")
    return os.path.abspath(value) if value.strip() else None


def _choice(
    environment: Mapping[str, str], variable: str, choices: Mapping[str, _T], *, default: _T
) -> _T:
    value = environment.get(variable, "")
    if not value.strip():  # Compose files set variables to nothing.
        return default
    if value not in choices:
        allowed = " or ".join(repr(choice) for choice in choices)
        raise OptaxDtypeFixError(f"{variable}={value!r} is not valid. Set it to {allowed}.")
    return choices[value]


def _ids(
    environment: Mapping[str, str], variable: str, known_ids: Sequence[str], *, strict: bool
) -> frozenset[str] | None:
    value = environment.get(variable)
    if value is None or not value.strip():
        return None
    words = [word.strip() for word in value.split(",")]
    if "" in words:
        raise OptaxDtypeFixError(
            f"{variable}={value!r} has an empty entry. Set it to patch ids separated by commas."
        )
    everything = ["all"] if variable.endswith("_DISABLE") else []
    if everything and "all" in words:
        words = [*known_ids, *(word for word in words if word != "all")]
    nothing_left = variable.endswith("_ONLY") and not set(words) & set(known_ids)
    effect = "nothing is patched" if nothing_left else "ignored"
    consequence = "" if strict else f" ({effect})"
    for word in words:
        if word not in known_ids:
            valid = [*known_ids, *everything]
            advice = suggest(word, valid, several="Separate patch ids with commas.")
            message = f"Unknown patch {word!r} in {variable}{consequence}. {advice}"
            warn_or_raise(message, strict=strict)
    return frozenset(words)


def _check_names(environment: Mapping[str, str], *, strict: bool) -> None:
    """Report unknown variables: a misspelt one would silently have no effect."""
    suffixes = ("", "_DISABLE", "_ONLY", "_ENABLE", "_STRICT", "_LOG", "_REPORT", "_REQUIRE")
    known = [_PREFIX + suffix for suffix in suffixes]
    consequence = "" if strict else " (ignored)"
    for variable in environment:
        if not variable.startswith("OPTAX_") or variable in known:
            continue
        if variable.startswith(_PREFIX) or closest(variable, known, cutoff=0.8):
            advice = suggest(variable, known)
            warn_or_raise(f"Unknown variable {variable}{consequence}. {advice}", strict=strict)


# Read while ``import optax_dtypefix`` runs: a malformed variable must stop the program there, and
# later changes of ``os.environ`` must not give half of the program other settings.
try:
    SETTINGS = read_settings(os.environ, IDS)
except OptaxDtypeFixError as malformed:
    raise_or_exit(malformed)
