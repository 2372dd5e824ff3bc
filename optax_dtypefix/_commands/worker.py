"""Processes that try stock and patched optax apart from each other.

JAX's caches live as long as the process, so a before and an after in one process could share a
trace and prove nothing.
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

_SCRIPT = """\
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
module, _, name = sys.argv[2].partition(":")
getattr(importlib.import_module(module), name)(*sys.argv[3:])
"""


class WorkerError(Exception):
    """The process could not do anything at all; the message says why."""


class Worker(contextlib.AbstractContextManager["Worker"]):
    """A process that calls a function which writes JSON lines; started at once, read later."""

    def __init__(
        self,
        folder: str,
        name: str,
        function: str,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the process.

        Args:
          folder: where its files go.
          name: what it tries, in words, unique in the folder.
          function: as ``module:name``; it is called with the path to write to.
          arguments: what it is called with besides.
          variables: set in its environment.
        """
        self._name = name
        self._path = os.path.join(folder, f"{name}.jsonl")
        self._said = os.path.join(folder, f"{name}.stderr")
        with open(self._said, "w", encoding="utf-8") as said:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _SCRIPT,
                    json.dumps(sys.path),
                    function,
                    self._path,
                    *arguments,
                ],
                env=_environment(variables or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def lines_so_far(self) -> int:
        """How much it has written."""
        try:
            with open(self._path, "rb") as file:
                return sum(1 for _ in file)
        except FileNotFoundError:
            return 0

    def first_entry(self) -> Mapping[str, Any] | None:
        """The first thing that it wrote, if it did already."""
        try:
            with open(self._path, encoding="utf-8") as file:
                line = file.readline()
        except FileNotFoundError:
            return None
        entry: Mapping[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return entry

    def entries(self) -> list[Mapping[str, Any]]:
        """What it wrote, when it has ended.

        Raises:
          WorkerError: it wrote nothing; the message has what it said.
        """
        self._process.wait()
        try:
            with open(self._path, encoding="utf-8") as file:
                found = [json.loads(line) for line in file]
        except FileNotFoundError:
            found = []
        if not found:
            with open(self._said, encoding="utf-8", errors="replace") as file:
                raise WorkerError(f"the process with {self._name} optax failed:\n{file.read()}")
        return found

    @property
    def code(self) -> int | None:
        """Its exit code, when it has ended."""
        return self._process.returncode


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    environment = {**os.environ, **variables}
    # Faults of dtype are the same on all devices, and the accelerator may be in use.
    environment.setdefault("JAX_PLATFORMS", "cpu")
    # What is tried chooses its own modes: 64 bits, strict promotion or a search for
    # not-a-numbers would show something else. Neither are warnings part of the contract.
    for variable in list(environment):
        other = variable.startswith("JAX_") and not variable.startswith("JAX_PLATFORM")
        if other or variable == "PYTHONWARNINGS":
            del environment[variable]
    return environment
