"""The record of a run: write it to a file, and require it of a later run.

``OPTAX_DTYPEFIX_REPORT`` names the file to write, ``OPTAX_DTYPEFIX_REQUIRE`` the one to compare
with. The file is written when optax is imported, in case the process is killed, and at exit.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import stat
import sys
from typing import TYPE_CHECKING, Any, Callable

from ._environment import VARIABLES
from ._errors import OptaxDtypeFixError, summarize, warn_or_raise
from ._settings import Settings
from .patches.catalogue import REMOVED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from ._diagnosis.report import Report


class Record:
    """The record that this process writes, and the one that it requires.

    Raises:
      OptaxDtypeFixError: the required record cannot be read; in strict mode, the report cannot be
        written.
    """

    def __init__(self, settings: Settings, status: Callable[[], Report]) -> None:
        self._settings = settings
        self._status = status
        self._required = read_record(settings.require) if settings.require else None
        self._path = settings.report
        self._process = os.getpid()
        self._applied: list[str] = []  # When optax was imported: a program may change it.
        self._optax: Any = None  # The optax that this is true of: a program may import another.
        if self._path:
            try:
                _find_file(self._path)
            except OSError as error:
                self._give_up(error, strict=settings.strict)
        atexit.register(self._end)

    def start(self, optax: ModuleType) -> None:
        """Compare what was applied to optax with the required record, and write the report.

        Raises:
          OptaxDtypeFixError: what is applied is not what was recorded. Where a record is required,
            or in strict mode: files of optax_dtypefix are of another version.
        """
        report = self._status()
        now = report.as_dict()
        self._optax = optax
        if report.installation:
            if self._required:
                self.write_nothing()
            strict = self._settings.strict or bool(self._required)
            warn_or_raise(report.installation, strict=strict)
        if self._required:
            self._compare(now["applied"], self._required["applied"])
        self._applied = now["applied"]
        self._write(report, finished=False)

    def _compare(self, now: list[str], recorded: list[str]) -> None:
        """Compare the packages and patches; of this package only the patches count."""
        (version, patches), (recorded_version, recorded_patches) = map(_split, (now, recorded))
        if patches != recorded_patches:
            self.write_nothing()  # It may be the path of the required record.
            removed = [f"Patch {i!r} {REMOVED[i]}\n" for i in recorded if i in REMOVED]
            raise OptaxDtypeFixError(
                f"The packages or patches differ from the record {self._settings.require}:\n"
                f"  only now:      {_without(now, recorded)}\n"
                f"  only recorded: {_without(recorded, now)}\n{''.join(removed)}"
                f"Use the recorded packages and OPTAX_DTYPEFIX* variables. To accept the "
                f"difference, record again: run once with OPTAX_DTYPEFIX_REPORT (--report) and "
                f"without OPTAX_DTYPEFIX_REQUIRE (--require)."
            )
        if version != recorded_version:
            from ._logging import LOGGER  # Not at the top: a launcher needs no logging.

            LOGGER.warning(
                "%s applies the same patches as the record %s of %s",
                version,
                self._settings.require,
                recorded_version,
            )

    def write_nothing(self) -> None:
        """Leave the file of the report alone."""
        self._path = None

    def _end(self) -> None:
        try:
            if self._path and "optax" in sys.modules:  # Launchers have no record.
                self._write(self._status(), finished=True)
        except Exception as error:  # A bug of ours must not change how the program ends.
            problem = f"The report was not written: {summarize(error)}"
            warn_or_raise(f"{problem}. Please report this bug.", strict=False)

    def _write(self, report: Report, *, finished: bool) -> None:
        """Replace the report as a whole: a reader, or another process, never sees half of it."""
        path = self._path
        forked = os.getpid() != self._process
        if path is None or (forked and "%p" not in path):  # The parent writes that one.
            return
        import json

        from ._diagnosis.report import digest_of
        from ._engine.release import version_of

        now = report.as_dict()
        is_current = sys.modules.get(getattr(self._optax, "__name__", "")) is self._optax
        failed = {patch["id"] for patch in now["patches"] if patch["state"] == "failed"}
        applied = self._applied if is_current else now["applied"]
        applied = [text for text in applied if text not in failed]  # Some fail when called.
        content = {
            **now,
            "digest": digest_of(applied),
            "applied": applied,
            "jaxlib_version": version_of("jaxlib"),
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "settings": _list_variables(self._settings),
            "finished": finished,
        }
        try:
            _replace_file(_find_file(path), json.dumps(content, indent=2) + "\n")
        except OSError as error:
            strict = self._settings.strict and not finished  # At exit there is nothing to stop.
            self._give_up(error, strict=strict)

    def _give_up(self, error: OSError, *, strict: bool) -> None:
        path, self._path = self._path, None
        warn_or_raise(
            f"Cannot write the report {path}: {error.strerror or error}. Set "
            f"OPTAX_DTYPEFIX_REPORT (--report) to a file in a folder that you can write to.",
            strict=strict,
        )


def _find_file(path: str) -> str:
    """Return the file to write: ``%p`` is the process id, and ``%h`` the host.

    Raises:
      OSError: it cannot be written; the message says why. A link may be of another user, who put it
        there to make us write elsewhere; and root could replace /dev/null.
    """
    if "%h" in path:
        import platform  # Not at the top: few paths need it.

        path = path.replace("%h", platform.node())
    path = path.replace("%p", str(os.getpid()))
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError("it is a link, or no regular file")
    if not os.access(os.path.dirname(path), os.W_OK):
        raise PermissionError(f"{os.path.dirname(path)} is no folder that you can write to")
    return path


def _replace_file(path: str, text: str) -> None:
    """Replace a file as a whole: a reader, or another process, never sees half of it."""
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        if os.path.exists(path):
            os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(temporary, path)
    finally:
        if os.path.lexists(temporary):
            os.remove(temporary)


def read_record(path: str) -> Mapping[str, Any]:
    """Read a record: a report, or the output of ``status --json``.

    Its texts may come from anyone, and go to a terminal: what cannot be printed is escaped.

    Raises:
      OptaxDtypeFixError: the file is missing, or is no record.
    """
    import json

    try:
        with open(path, "rb") as file:
            record: Mapping[str, Any] = json.loads(file.read())  # PowerShell writes UTF-16.
        applied = record["applied"]
        if not (isinstance(applied, list) and all(isinstance(text, str) for text in applied)):
            raise TypeError("what was applied is not a list of texts")
        texts = [text if text.isprintable() else ascii(text)[1:-1] for text in applied]
    except OSError as error:
        problem = error.strerror or str(error)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        problem = f"it is not a report of optax-dtypefix ({summarize(error)})"
    else:
        return {**record, "applied": texts}
    raise OptaxDtypeFixError(
        f"Cannot read the record {path} of OPTAX_DTYPEFIX_REQUIRE (--require): {problem}. Write a "
        f"record with OPTAX_DTYPEFIX_REPORT (--report), or with `python -m optax_dtypefix status "
        f"--json > FILE`."
    )


def _list_variables(settings: Settings) -> dict[str, str]:
    """Return the variables that are not at their defaults, and their effective values."""
    found: dict[str, str] = {}
    for field, default in Settings._field_defaults.items():
        value: Any = getattr(settings, field)
        if value != default:
            text = ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
            found[VARIABLES[field]] = {True: "1", False: "off"}.get(value, text)
    return found


def _split(applied: list[str]) -> tuple[str, set[str]]:
    """Split what was applied into the version of this package, and the rest."""
    ours = "optax-dtypefix "
    version = next((text for text in applied if text.startswith(ours)), f"{ours}(no version)")
    return version, {text for text in applied if not text.startswith(ours)}


def _without(applied: list[str], others: list[str]) -> str:
    return ", ".join(text for text in applied if text not in others) or "nothing"
