"""Run Python in new processes: the one way in which the tests do so.

Stock and patched functions never share a process, so they cannot share a trace.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Sequence

TESTS = Path(__file__).parents[1]
STOCK, PATCHED = {"OPTAX_DTYPEFIX": "off"}, dict[str, str]()

_OWN = ("OPTAX_DTYPEFIX", "JAX_", "XLA_", "COLUMNS", "ONE_MLIR_CONTEXT")


_JAX = Version(version("jax"))


CACHE_FOLDER = str(TESTS.parent / ".jax_cache" / platform.node())
"""For what JAX compiles on this machine. Delete it at any time."""


def _cache() -> dict[str, str]:
    """Return the variables with which JAX keeps what it compiles, for this machine.

    Older versions of JAX cannot do that on the CPU, or write about it to stderr.
    """
    if Version("0.10") > _JAX:
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": CACHE_FOLDER,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


CACHE = _cache()
"""For processes that share what they compile: those of pytest, and of other test sessions.

What is read from the cache has the program, the traffic and the memory of what was written to it.
"""

# XLA ends a process with a flag that it does not know, so this is for versions that were tried.
QUICKLY = (
    {
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
        "ONE_MLIR_CONTEXT": "1",  # As `support` says.
    }
    if Version("0.10") <= _JAX < Version("0.11")
    else {}
)
"""For processes that compile many small programs: half the time of the tests goes there.

Not where a test looks at a program, or compares its results with recorded ones.
"""

QUICKLY_ANYWHERE = QUICKLY or {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""For evidence on all tested versions of JAX, which all know this flag."""


def environment(**variables: str) -> dict[str, str]:
    """Return this environment for a new process, on the CPU.

    Variables that a developer may have set for optax_dtypefix or JAX are left out.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
    return {**inherited, "JAX_PLATFORMS": "cpu", **variables}


def start(
    *arguments: str | Path, folder: Path = TESTS, stdin: IO[str] | None = None, **variables: str
) -> subprocess.Popen[str]:
    """Start Python in a folder. From `tests/`, `-m` runs a module by its dotted name."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=environment(**variables),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes: Sequence[subprocess.Popen[str]], timeout: float | None = None) -> list[Any]:
    """Wait for processes that run side by side; kill all of them if one takes too long."""
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
        for process, (stdout, stderr) in zip(processes, outputs)
    ]


def run(
    *arguments: str | Path,
    folder: Path = TESTS,
    timeout: float | None = None,
    stdin: IO[str] | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, whatever its exit code."""
    return finish([start(*arguments, folder=folder, stdin=stdin, **variables)], timeout)[0]


def stdout_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a process printed; it must have succeeded."""
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def json_of(*arguments: str, **variables: str) -> Any:
    """Return the JSON in the last line that a module of `tests/` prints; run it only once.

    ``XLA_FLAGS=""`` compiles as for users, not ``QUICKLY``.
    """
    done = run("-m", *arguments, **{**CACHE, **QUICKLY, **variables})
    return json.loads(stdout_of(done).splitlines()[-1])


def stock_and_patched(*arguments: str, **variables: str) -> tuple[Any, Any]:
    """Return the JSON that a module of `tests/` prints on stock and on patched optax.

    One after the other, so that the second need not compile what both run.
    """
    stock, patched = (json_of(*arguments, **variables, **way) for way in (STOCK, PATCHED))
    return stock, patched


def write_script(folder: Path, source: str, name: str = "script.py") -> Path:
    """Write an indented source into a folder."""
    path = folder / name
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


@dataclasses.dataclass(frozen=True)
class Python:
    """Python in a folder, with these first arguments."""

    folder: Path
    first: tuple[str, ...] = ()

    def __call__(
        self, *arguments: str, stdin: IO[str] | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it with variables set."""
        command, variables = (*self.first, *arguments), {**CACHE, **QUICKLY, **variables}
        return run(*command, folder=self.folder, timeout=300, stdin=stdin, **variables)

    def at_start(self, code: str) -> str:
        """Return the PYTHONPATH under which every process runs this code before anything else."""
        folder = self.folder / "site"
        folder.mkdir()
        write_script(folder, code, "sitecustomize.py")
        return str(folder)
