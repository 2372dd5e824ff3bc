"""Read the ``OPTAX_DTYPEFIX*`` environment variables, once and strictly.

A malformed value raises :class:`OptaxDtypeFixError`, which names the variable, the value and the
allowed values. An unknown patch id is a warning that suggests the nearest id, or an error in strict
mode. An id that an older version had is a warning in strict mode too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from ._errors import OptaxDtypeFixError, warn_or_raise
from ._text import closest, suggest
from .patches.catalogue import PATCHES, REMOVED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_T = TypeVar("_T")
_PREFIX = "OPTAX_DTYPEFIX"
_SWITCH = {"on": True, "off": False}
_STRICT = {"0": False, "1": True}
_OPT_INS = ", ".join(patch_id for patch_id, row in PATCHES.items() if "opt_in" in row)
_IN_PLACE_OF_ALL = {
    "_ONLY": "Unset the variable: then all patches that your optax needs are applied.",
    "_ENABLE": f"Name the opt-in patches: {_OPT_INS}.",
}
_LEVELS: dict[str, str | None] = {"warning": "WARNING", "info": "INFO", "debug": "DEBUG"}


def read_variables(environment: Mapping[str, str], known_ids: Sequence[str]) -> dict[str, Any]:
    """Read every ``OPTAX_DTYPEFIX*`` variable. Return the fields of ``Settings``.

    Raises:
      OptaxDtypeFixError: a value is malformed; in strict mode, an id or a variable is unknown.
    """
    strict = _choice(environment, f"{_PREFIX}_STRICT", _STRICT, default=False)
    _check_names(environment, strict=strict)

    def ids(variable: str) -> frozenset[str] | None:
        return _ids(environment, variable, known_ids, strict=strict)

    return {
        "enabled": _choice(environment, _PREFIX, _SWITCH, default=True),
        "disable": ids(f"{_PREFIX}_DISABLE") or frozenset(),
        "only": ids(f"{_PREFIX}_ONLY"),
        "enable": ids(f"{_PREFIX}_ENABLE") or frozenset(),
        "strict": strict,
        "log_level": _choice(environment, f"{_PREFIX}_LOG", _LEVELS, default=None),
        "report": _path(environment, f"{_PREFIX}_REPORT"),
        "require": _path(environment, f"{_PREFIX}_REQUIRE"),
    }


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
        if word in REMOVED:
            end = " Nothing is patched." if nothing_left else ""
            warn_or_raise(f"Patch {word!r} in {variable} {REMOVED[word]}{end}", strict=False)
        elif word not in known_ids:
            valid = [*known_ids, *everything]
            instead = (
                _IN_PLACE_OF_ALL.get(variable[len(_PREFIX) :]) if word.lower() == "all" else ""
            )
            advice = instead or suggest(word, valid, several="Separate patch ids with commas.")
            message = f"Unknown patch {word!r} in {variable}{consequence}. {advice}"
            warn_or_raise(message, strict=strict)
    return frozenset(words).difference(REMOVED)


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
