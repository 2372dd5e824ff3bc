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
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .import_optax import NoOptaxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# The path comes first, as part of the source: Python puts the current folder on the path, and any
# file there may have the name of a standard module.
_SCRIPT = """\
import sys
sys.path[:] = {path!r}
import importlib
module, _, name = sys.argv[1].partition(":")
getattr(importlib.import_module(module), name)(*sys.argv[2:])
"""

STOCK_AND_PATCHED: Mapping[str, Mapping[str, str]] = {
    "stock": {"OPTAX_DTYPEFIX": "off"},
    "patched": {},
}


class Written(NamedTuple):
    """The entries that a process wrote, and the code with which it ended."""

    entries: list[Any]
    code: int


def run_workers(
    function: str, arguments: Sequence[str], ways: Mapping[str, Mapping[str, str]]
) -> dict[str, Written]:
    """Call a function in several processes at the same time; on a terminal, show how far they are.

    Args:
      function: as ``module:name``. It writes JSON lines to the path that is its first argument. The
        first line has the number of lines that will follow, as ``total``.
      arguments: its further arguments.
      ways: for each process its name, and the environment variables to set.

    Raises:
      NoOptaxError: a process wrote nothing; the message has its stderr.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="optax-dtypefix-"))
        paths = {name: os.path.join(folder, f"{name}.jsonl") for name in ways}
        processes = {}
        for name, path in paths.items():
            process = _start([function, path, *arguments], ways[name], f"{path}.stderr")
            processes[name] = stack.enter_context(process)
            stack.callback(process.kill)
        while any(process.poll() is None for process in processes.values()):
            time.sleep(0.1)
            if sys.stderr.isatty():
                _show_progress([_entries(path) for path in paths.values()])
        if sys.stderr.isatty():
            print(file=sys.stderr)
        written = {
            name: Written(_entries(path), processes[name].wait()) for name, path in paths.items()
        }
        for name, path in paths.items():
            if not written[name].entries:
                with open(f"{path}.stderr", encoding="utf-8", errors="replace") as file:
                    raise NoOptaxError(f"the process with {name} optax failed:\n{file.read()}")
        return written


@contextlib.contextmanager
def lines_to(path: str) -> Iterator[Callable[..., None]]:
    """In such a process: yield a function that writes its keyword arguments as a line.

    Each line is written at once, so that a crash loses none of the earlier ones.
    """
    with open(path, "w", encoding="utf-8") as file:
        yield lambda **fields: print(json.dumps(fields), file=file, flush=True)


def _start(
    arguments: list[str], variables: Mapping[str, str], stderr: str
) -> subprocess.Popen[bytes]:
    script = _SCRIPT.format(path=[entry for entry in sys.path if isinstance(entry, str)])
    with open(stderr, "w", encoding="utf-8") as file:
        return subprocess.Popen(
            [sys.executable, *_isolation(), "-c", script, *arguments],
            env=_environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )


def _entries(path: str) -> list[Any]:
    """Read the lines that were written in full."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def _show_progress(written: list[list[Any]]) -> None:
    if all(written):
        total = sum(entries[0]["total"] for entries in written)
        done = sum(len(entries) - 1 for entries in written)
        print(f"\r{done} of {total}", end="", file=sys.stderr, flush=True)


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
