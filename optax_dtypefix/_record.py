"""The record of a run: write it to a file, and hold a later run to it.

``OPTAX_DTYPEFIX_REPORT`` names the file to write, ``OPTAX_DTYPEFIX_REQUIRE`` the one to compare
with. The file is written when optax is imported, in case the process is killed, and at exit.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from ._errors import OptaxDtypeFixError, warn_or_raise
from ._settings import SETTINGS, named_by
from ._text import summarize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ._engine.report import Report
    from ._settings import Settings

_VERSIONS = {
    "optax-dtypefix": "optax_dtypefix_version",
    "optax": "optax_version",
    "jax": "jax_version",
}
# As root, we could replace /dev/null by a report.
_NO_FILES = ("/dev", "/dev/fd", "/proc/self/fd")


def keep_record(settings: Settings) -> None:
    """Write and require records in this process from now on.

    Raises:
      OptaxDtypeFixError: the required record cannot be read; in strict mode, the report cannot be
        written; optax is imported already and differs from the required record.
    """
    global _kept
    first, _kept = _kept is None, _Record(settings)
    if first:
        import atexit

        atexit.register(_write_at_exit)
    if not SETTINGS.enabled or f"{__package__}._optax" in sys.modules:
        # Nothing is applied, or it was applied before: the engine does not call us.
        from ._engine.import_hook import after_import

        after_import("optax", lambda _: after_applying(_status))


def after_applying(status: Callable[[], Report]) -> None:
    """Compare what is applied with the required record, and write the report.

    Raises:
      OptaxDtypeFixError: what is applied is not what was recorded.
    """
    if _kept is not None:
        _kept.after_applying(status())


def _write_at_exit() -> None:
    if _kept is None or "optax" not in sys.modules:  # Launchers and data loaders have no record.
        return
    try:
        _kept.write(_status(), finished=True)
    except Exception as error:  # A bug of ours must not change how the program ends.
        warn_or_raise(f"The report was not written: {summarize(error)}", strict=False)


def _status() -> Report:
    from ._optax import ENGINE  # Not ``_api``: if its import failed, this would repeat it.

    return ENGINE.status()


class _Record:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._required = read_record(settings.require) if settings.require else None
        self._path = settings.report
        self._process = os.getpid()
        self._warned = False
        problem = _why_unwritable(self._path) if self._path else ""
        if problem:
            self._warn(problem, strict=settings.strict)

    def after_applying(self, report: Report) -> None:
        differences = list(_differences(report.as_dict(), self._required or {}))
        if differences:
            self._path = None  # It may be the path of the required record.
            raise OptaxDtypeFixError(
                f"What is applied is not what {self._settings.require} records:\n"
                + "\n".join(f"  {difference}" for difference in differences)
                + "\nUse the recorded packages and OPTAX_DTYPEFIX* variables. To accept the "
                "difference, run once without OPTAX_DTYPEFIX_REQUIRE (--require) and record again."
            )
        self.write(report, finished=False)

    def write(self, report: Report, *, finished: bool) -> None:
        """Replace the report as a whole: a reader, or another process, never sees half of it."""
        path = self._path
        forked = os.getpid() != self._process
        if path is None or (forked and "%p" not in path):  # The parent writes that one.
            return
        import json

        text = json.dumps(self._content(report, finished=finished), indent=2)
        problem = _why_unwritable(path)
        if problem:
            self._warn(problem, strict=False)
            return
        path = os.path.realpath(_filled_in(path))
        temporary = f"{path}.{os.urandom(4).hex()}.tmp"
        try:
            try:
                with open(temporary, "w", encoding="utf-8") as file:
                    file.write(text + "\n")
                os.replace(temporary, path)
            finally:
                if os.path.exists(temporary):
                    os.remove(temporary)
        except OSError as error:
            self._warn(error.strerror or str(error), strict=False)

    def _content(self, report: Report, *, finished: bool) -> dict[str, Any]:
        from ._engine.release import version_of

        return {
            **report.as_dict(),
            "jaxlib_version": version_of("jaxlib"),
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "settings": self._settings.variables(),
            "finished": finished,
        }

    def _warn(self, problem: str, *, strict: bool) -> None:
        if not self._warned:
            self._warned = True
            warn_or_raise(
                f"Cannot write the report {self._path}: {problem}. Set OPTAX_DTYPEFIX_REPORT "
                f"(--report) to a file in a folder that exists.",
                strict=strict,
            )


_kept: _Record | None = None


def _filled_in(path: str) -> str:
    """Replace ``%p`` by the process id and ``%h`` by the name of the host."""
    if "%h" in path:
        import platform  # Not at the top: few paths need it.

        path = path.replace("%h", platform.node())
    return path.replace("%p", str(os.getpid()))


def _why_unwritable(path: str) -> str:
    path = _filled_in(path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    if os.path.exists(path) and (folder in _NO_FILES or not os.path.isfile(path)):
        return "it is not a regular file"
    return "" if os.access(folder, os.W_OK) else f"no permission to write in {folder}"


def read_record(path: str) -> Mapping[str, Any]:
    """Read a record: a report, or the output of ``status --json``."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        versions = [record[key] for key in _VERSIONS.values()]
        patches = [(p["id"], p["state"], *p["targets"], p["reason"]) for p in record["patches"]]
        if not all(isinstance(text, str) for texts in (versions, *patches) for text in texts):
            raise TypeError("a version, state or target is not a string")
    except OSError as error:
        problem = error.strerror or str(error)
    except (LookupError, TypeError, ValueError) as error:
        problem = f"it is not a report of optax-dtypefix ({summarize(error)})"
    else:
        found: Mapping[str, Any] = record
        return found
    raise OptaxDtypeFixError(
        f"OPTAX_DTYPEFIX_REQUIRE (--require) is {path}, which cannot be used: {problem}. Write it "
        f"with OPTAX_DTYPEFIX_REPORT, or with `python -m optax_dtypefix status --json > FILE`."
    )


def _differences(now: Mapping[str, Any], recorded: Mapping[str, Any]) -> Iterator[str]:
    """Describe each difference between what is applied and what was recorded."""
    if not recorded:
        return
    for name, key in _VERSIONS.items():
        if now[key] != recorded[key]:
            yield f"{name} {now[key]}, recorded {recorded[key]}"
    ours, theirs = ({p["id"]: p for p in record["patches"]} for record in (now, recorded))
    found: dict[str, list[str]] = {}  # The settings often switch several patches.
    for patch_id in dict.fromkeys([*ours, *theirs]):
        difference = _difference(ours.get(patch_id), theirs.get(patch_id), now, recorded)
        if difference:
            found.setdefault(difference, []).append(patch_id)
    for difference, ids in found.items():
        yield f"patch{'' if len(ids) == 1 else 'es'} {', '.join(ids)}: {difference}"


def _difference(
    mine: Mapping[str, Any] | None,
    other: Mapping[str, Any] | None,
    now: Mapping[str, Any],
    recorded: Mapping[str, Any],
) -> str:
    if mine is None or other is None:
        return "not recorded" if mine else "recorded, and unknown now"
    if _conflict(mine, other, recorded):
        return f"{_state(mine)}, recorded {_state(other)}"
    # Another release has other functions.
    same = mine["state"] == other["state"] and now["optax_version"] == recorded["optax_version"]
    if same and mine["targets"] != other["targets"]:
        return f"wraps {', '.join(mine['targets'])}, recorded {', '.join(other['targets'])}"
    return ""


def _conflict(now: Mapping[str, Any], then: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Return whether a patch has another state, which the program cannot change later."""
    from ._engine.engine import REVERTED, SUSPENDED
    from ._engine.selection import NOT_OPTED_IN

    states = {now["state"], then["state"]}
    if len(states) == 1 or {now["reason"], then["reason"]} & {REVERTED, SUSPENDED}:
        return False
    if now["reason"] == NOT_OPTED_IN and "settings" in recorded:
        # If no variable named it then, the program did, and may do so again.
        return now["id"] in named_by(recorded["settings"])
    # A pending patch is decided, and compared again, when its module is imported.
    return "pending" not in states or bool(states & {"disabled", "failed"})


def _state(patch: Mapping[str, Any]) -> str:
    return (
        patch["state"] if patch["state"] == "applied" else f"{patch['state']} ({patch['reason']})"
    )
