"""The record of a run: write it to a file, and require it of a later run.

``OPTAX_DTYPEFIX_REPORT`` names the file to write, ``OPTAX_DTYPEFIX_REQUIRE`` the one to compare
with. The file is written when optax is imported, in case the process is killed, and at exit.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from ._errors import OptaxDtypeFixError, warn_or_raise
from ._text import summarize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._engine.report import Report
    from ._settings import Settings

# As root, we could replace /dev/null by a report.
_NO_FILES = ("/dev", "/dev/fd", "/proc/self/fd")


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
        self._applied: dict[str, Any] = {}  # When optax was imported: a program may change it.
        problem = _why_unwritable(_filled_in(self._path)) if self._path else ""
        if problem:
            self._give_up(problem, strict=settings.strict)
        atexit.register(self._end)

    def start(self) -> None:
        """Compare what was applied to optax with the required record, and write the report.

        Raises:
          OptaxDtypeFixError: what is applied is not what was recorded.
        """
        report = self._status()
        if self._required:
            self._compare(report.applied, self._required["applied"])
        self._applied = {"digest": report.digest, "applied": report.applied}
        self._write(report, finished=False)

    def _compare(self, now: list[str], recorded: list[str]) -> None:
        """Compare the packages and patches; of this package only the patches count."""
        mine, theirs = (_version_and_rest(applied) for applied in (now, recorded))
        if mine[1] != theirs[1]:
            self.write_nothing()  # It may be the path of the required record.
            raise OptaxDtypeFixError(
                f"The packages or patches differ from the record {self._settings.require}:\n"
                f"  only now:      {_without(now, recorded)}\n"
                f"  only recorded: {_without(recorded, now)}\n"
                f"Use the recorded packages and OPTAX_DTYPEFIX* variables. To accept the "
                f"difference, record again: run once with OPTAX_DTYPEFIX_REPORT (--report) and "
                f"without OPTAX_DTYPEFIX_REQUIRE (--require)."
            )
        if mine[0] != theirs[0]:
            from ._logging import LOGGER  # Not at the top: a launcher needs no logging.

            LOGGER.warning(
                "%s applies the same patches as the record %s of %s",
                mine[0],
                self._settings.require,
                theirs[0],
            )

    def write_nothing(self) -> None:
        """Leave the file of the report alone."""
        self._path = None

    def _end(self) -> None:
        try:
            if "optax" in sys.modules:  # Launchers and data loaders have no record.
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

        from ._engine.release import version_of

        content = {
            **report.as_dict(),
            **self._applied,
            "jaxlib_version": version_of("jaxlib"),
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "settings": self._settings.variables(),
            "finished": finished,
        }
        path = os.path.realpath(_filled_in(path))
        temporary = f"{path}.{os.urandom(4).hex()}.tmp"
        try:
            try:
                with open(temporary, "w", encoding="utf-8") as file:
                    file.write(json.dumps(content, indent=2) + "\n")
                os.replace(temporary, path)
            finally:
                if os.path.exists(temporary):
                    os.remove(temporary)
        except OSError as error:
            self._give_up(error.strerror or str(error), strict=False)

    def _give_up(self, problem: str, *, strict: bool) -> None:
        path, self._path = self._path, None
        warn_or_raise(
            f"Cannot write the report {path}: {problem}. Set OPTAX_DTYPEFIX_REPORT (--report) to "
            f"a file in a folder that you can write to.",
            strict=strict,
        )


def read_record(path: str) -> Mapping[str, Any]:
    """Read a record: a report, or the output of ``status --json``.

    Raises:
      OptaxDtypeFixError: the file is missing, or is no record.
    """
    import json

    try:
        with open(path, encoding="utf-8") as file:
            record: Mapping[str, Any] = json.load(file)
        applied = record["applied"]
        if not (isinstance(applied, list) and all(isinstance(text, str) for text in applied)):
            raise TypeError("what was applied is not a list of texts")
    except OSError as error:
        problem = error.strerror or str(error)
    except (LookupError, TypeError, ValueError) as error:
        problem = f"it is not a report of optax-dtypefix ({summarize(error)})"
    else:
        return record
    raise OptaxDtypeFixError(
        f"Cannot read the record {path} of OPTAX_DTYPEFIX_REQUIRE (--require): {problem}. Write a "
        f"record with OPTAX_DTYPEFIX_REPORT (--report), or with `python -m optax_dtypefix status "
        f"--json > FILE`."
    )


def _version_and_rest(applied: list[str]) -> tuple[str, set[str]]:
    """Split what was applied into the version of this package, and the rest."""
    ours = "optax-dtypefix "
    version = next((text for text in applied if text.startswith(ours)), f"{ours}(no version)")
    return version, {text for text in applied if not text.startswith(ours)}


def _without(applied: list[str], others: list[str]) -> str:
    return ", ".join(text for text in applied if text not in others) or "nothing"


def _filled_in(path: str) -> str:
    """Replace ``%p`` by the process id and ``%h`` by the name of the host."""
    if "%h" in path:
        import platform  # Not at the top: few paths need it.

        path = path.replace("%h", platform.node())
    return path.replace("%p", str(os.getpid()))


def _why_unwritable(path: str) -> str:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    if os.path.exists(path) and (folder in _NO_FILES or not os.path.isfile(path)):
        return "it is not a regular file"
    return "" if os.access(folder, os.W_OK) else f"no permission to write in {folder}"
