"""Run stock and patched optax in separate processes.

JAX's caches live as long as the process: in one process, both runs could share a trace, and the
comparison would prove nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The path comes first, as part of the source: Python puts the current folder on the path, and any
# file there may have the name of a standard module.
_SCRIPT = """\
import sys
sys.path[:] = {path!r}
import importlib
module, _, name = sys.argv[1].partition(":")
getattr(importlib.import_module(module), name)(*sys.argv[2:])
"""


class WorkerError(Exception):
    """The process wrote no result; the message says why."""


class Worker(contextlib.AbstractContextManager["Worker"]):
    """A process that calls one function, which writes JSON lines. It starts at once."""

    def __init__(
        self,
        folder: str,
        name: str,
        function: str,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process.

        Args:
          folder: for the files of the process.
          name: which optax it runs, as text; unique in the folder.
          function: as ``module:name``; its first argument is the path to write to.
          arguments: further arguments of the function.
          variables: environment variables to set.
        """
        self._name = name
        self._path = os.path.join(folder, f"{name}.jsonl")
        self._stderr = os.path.join(folder, f"{name}.stderr")
        with open(self._stderr, "w", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *_isolation(),
                    "-c",
                    _SCRIPT.format(path=[entry for entry in sys.path if isinstance(entry, str)]),
                    function,
                    self._path,
                    *arguments,
                ],
                env=_environment(variables or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def lines_so_far(self) -> int:
        """Count the lines that the process has written."""
        try:
            with open(self._path, "rb") as file:
                return sum(1 for _ in file)
        except FileNotFoundError:
            return 0

    def first_entry(self) -> Mapping[str, Any] | None:
        """Return the first line that the process wrote, or None if there is none yet."""
        try:
            with open(self._path, encoding="utf-8") as file:
                line = file.readline()
        except FileNotFoundError:
            return None
        entry: Mapping[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return entry

    def entries(self) -> list[Mapping[str, Any]]:
        """Wait until the process ends, and return the lines that it wrote.

        Raises:
          WorkerError: the process wrote nothing; the message has its stderr.
        """
        self._process.wait()
        try:
            with open(self._path, encoding="utf-8") as file:
                found = [json.loads(line) for line in file]
        except FileNotFoundError:
            found = []
        if not found:
            with open(self._stderr, encoding="utf-8", errors="replace") as file:
                raise WorkerError(f"the process with {self._name} optax failed:\n{file.read()}")
        return found

    @property
    def code(self) -> int | None:
        """The exit code of the process, once it has ended."""
        return self._process.returncode


def _isolation() -> list[str]:
    """Return the option that keeps files out that this process does not run either."""
    if sys.flags.isolated:
        return ["-I"]
    return ["-P"] if sys.version_info >= (3, 11) else []


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    environment = {**os.environ, **variables}
    # Dtype faults are the same on all devices, and the accelerator may be in use.
    environment.setdefault("JAX_PLATFORMS", "cpu")
    # The reproducers choose their own JAX modes: 64 bits, strict promotion or NaN checks in the
    # environment would change the outcomes. Warnings are not part of the contract.
    # A worker is no run of the user: it must not replace the report, and stock differs from it.
    for variable in ("OPTAX_DTYPEFIX_REPORT", "OPTAX_DTYPEFIX_REQUIRE"):
        environment.pop(variable, None)
    for variable in list(environment):
        other = variable.startswith("JAX_") and not variable.startswith("JAX_PLATFORM")
        if other or variable == "PYTHONWARNINGS":
            del environment[variable]
    return environment
