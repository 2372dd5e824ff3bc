"""Read the ``OPTAX_DTYPEFIX*`` environment variables, once and strictly.

A malformed value raises :class:`OptaxDtypeFixError`, which names the variable, the value and the
allowed values. An unknown patch id is a warning that suggests the nearest id, or an error in strict
mode. An id that an older version had is a warning in strict mode too.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from ._engine.import_hook import after_import
from ._errors import (
    OptaxDtypeFixError,
    OptaxDtypeFixWarning,
    frame_of_the_user,
    package_of,
    warn_or_raise,
)
from ._settings import Settings
from .patches.catalogue import PATCHES, REMOVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


VARIABLES = {
    "enabled": "OPTAX_DTYPEFIX",
    "disable": "OPTAX_DTYPEFIX_DISABLE",
    "only": "OPTAX_DTYPEFIX_ONLY",
    "enable": "OPTAX_DTYPEFIX_ENABLE",
    "strict": "OPTAX_DTYPEFIX_STRICT",
    "log_level": "OPTAX_DTYPEFIX_LOG",
    "report": "OPTAX_DTYPEFIX_REPORT",
    "require": "OPTAX_DTYPEFIX_REQUIRE",
}
_CHOICES: dict[str, dict[str, bool | str]] = {
    "enabled": {"on": True, "off": False},
    "strict": {"0": False, "1": True},
    "log_level": {"warning": "warning", "info": "info", "debug": "debug"},
}


def read_variables(environment: Mapping[str, str], known_ids: Sequence[str]) -> Settings:
    """Read every ``OPTAX_DTYPEFIX*`` variable.

    Raises:
      OptaxDtypeFixError: a value is malformed; in strict mode, an id or a variable is unknown.
    """
    found: dict[str, Any] = {
        field: environment[variable]
        for field, variable in VARIABLES.items()
        if environment.get(variable, "").strip()  # Compose files set variables to nothing.
    }
    for field in _CHOICES.keys() & found:
        variable, value, choices = VARIABLES[field], found[field], _CHOICES[field]
        if value not in choices:
            allowed = " or ".join(map(repr, choices))
            raise OptaxDtypeFixError(f"{variable}={value!r} is not valid. Set it to {allowed}.")
        found[field] = choices[value]
    strict = found.get("strict", False)
    _report_misspelt(environment, strict=strict)
    for field in {"disable", "only", "enable"} & found.keys():
        found[field] = _ids(VARIABLES[field], found[field], known_ids, strict=strict)
    for field in {"report", "require"} & found.keys():  # The program may change its folder.
        found[field] = os.path.abspath(found[field])
    return Settings(**found)


def _ids(variable: str, value: str, known_ids: Sequence[str], *, strict: bool) -> frozenset[str]:
    words = [word.strip() for word in value.split(",")]
    if "" in words:
        raise OptaxDtypeFixError(
            f"{variable}={value!r} has an empty entry. Set it to patch ids separated by commas."
        )
    valid = [*known_ids, "all"] if variable == VARIABLES["disable"] else known_ids
    nothing_left = variable == VARIABLES["only"] and not {*words} & {*known_ids}
    for word in words:
        if word in REMOVED:
            end = " Nothing is patched." if nothing_left else ""
            warn_or_raise(f"Patch {word!r} in {variable} {REMOVED[word]}{end}", strict=False)
        elif word not in valid:
            effect = "" if strict else " (nothing is patched)" if nothing_left else " (ignored)"
            advice = _advice(variable, word, valid)
            warn_or_raise(f"Unknown patch {word!r} in {variable}{effect}. {advice}", strict=strict)
    everything = known_ids if "all" in {*words} & {*valid} else ()
    return frozenset((*words, *everything)).difference(REMOVED, ("all",))


def _advice(variable: str, word: str, valid: Sequence[str]) -> str:
    from ._text import suggest  # Few programs have a typo.

    if word.lower() != "all" or "all" in valid:
        return suggest(word, valid, several="Separate patch ids with commas.")
    if variable == VARIABLES["only"]:
        return "Unset the variable: then all patches that your optax needs are applied."
    opt_ins = (patch_id for patch_id, row in PATCHES.items() if "opt_in" in row)
    return f"Name the opt-in patches: {', '.join(opt_ins)}."


def _report_misspelt(names: Iterable[str], *, strict: bool) -> None:
    """Report unknown variables: a misspelt one would silently have no effect."""
    known = [*VARIABLES.values()]
    for name in names:
        if name.startswith("OPTAX_") and name not in known:
            from ._text import closest, suggest

            if name.startswith(known[0]) or closest(name, known, cutoff=0.8):
                effect = "" if strict else " (ignored)"
                message = f"Unknown variable {name}{effect}. {suggest(name, known)}"
                warn_or_raise(message, strict=strict)


def set_up_logging(level: str) -> None:
    """Set the level that the user asked for. Without one, the level is left to the program.

    Records propagate. Those below warning are also shown on stderr, but only until the program
    configures logging: Python itself shows no such record in an unconfigured program.
    """
    import logging

    from ._logging import LOGGER

    LOGGER.setLevel(level.upper())
    if level != "warning" and not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        handler.addFilter(
            lambda _: LOGGER.handlers == [handler] and not logging.getLogger().handlers
        )
        LOGGER.addHandler(handler)


CHECK_FAILED = 3
"""Exit code of ``check`` and ``scan`` if they have no verdict; the verdicts are 0, 1 and 2."""

_AT_START = ("site", "sitecustomize")


def read_own(known_ids: Sequence[str]) -> Settings:
    """Read the variables of this process. The program that ``run`` becomes warns, not ``run``."""
    if (_own_command() or [""])[0] == "run":
        warnings.simplefilter("ignore", OptaxDtypeFixWarning)
    return read_variables(os.environ, known_ids)


def refusal(error: OptaxDtypeFixError) -> BaseException:
    """Return what ``import optax_dtypefix`` raises where a setting is malformed.

    At the start of Python, ``site`` prints the error and goes on. Then ``import optax`` raises it.
    Our own command prints it, and ends with 2, for wrong usage; ``check`` and ``scan`` with 3.
    """

    def refuse(_: Any) -> None:
        raise error.with_traceback(None)

    if package_of(frame_of_the_user()) in _AT_START:
        after_import("optax", refuse)
    command = _own_command()
    if command is None:
        return error
    if sys.stderr is not None:  # Closed, as in ``2>&-``: ``print`` would take stdout.
        print(f"optax-dtypefix: {error}", file=sys.stderr)
    return SystemExit(CHECK_FAILED if command[:1] in (["check"], ["scan"]) else 2)


def _own_command() -> list[str] | None:
    """Return the arguments of our own command, if that imports the package, and no program."""
    name, *arguments = getattr(sys, "argv", None) or [""]
    caller = package_of(frame_of_the_user())
    is_script = os.path.basename(name).partition(".")[0] == "optax-dtypefix"
    return arguments if caller == "runpy" or (is_script and caller not in _AT_START) else None
