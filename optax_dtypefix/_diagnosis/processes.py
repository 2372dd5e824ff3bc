"""Run stock and patched optax in separate processes.

JAX's caches live as long as the process: in one process, both runs could share a trace, and the
comparison would prove nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from .._api import get_engine
from .import_optax import NoOptaxError
from .installation import mixed_installation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# The path comes first, as part of the source: Python puts the current folder on the path, and any
# file there may have the name of a standard module.
_SCRIPT = """\
import sys
sys.path[:] = {path!r}
import importlib, os
module, _, name = sys.argv[1].partition(":")
getattr(importlib.import_module(module), name)(*sys.argv[2:])
os._exit(0)  # Python would wait for the threads that the user's program started.
"""

_PAUSE = 0.2
"""Seconds between two looks at what processes have written."""

STOCK_AND_PATCHED: Mapping[str, Mapping[str, str]] = {
    "stock": {"OPTAX_DTYPEFIX": "off"},
    "patched": {},
}


class Written(NamedTuple):
    """The entries that a process wrote, and the code with which it ended."""

    entries: list[Any]
    code: int


def run_workers(
    function: str,
    arguments: Sequence[str],
    ways: Mapping[str, Mapping[str, str]],
    meanwhile: Callable[[list[Written]], None] | None = None,
) -> dict[str, Written]:
    """Call a function in several processes at the same time.

    Args:
      function: as ``module:name``. It writes JSON lines to the path that is its first argument.
      arguments: its further arguments.
      ways: for each process its name, and the environment variables to set.
      meanwhile: if given, called now and then with what the processes have written so far.

    Raises:
      NoOptaxError: a process wrote nothing; the message has its stderr.
    """
    with contextlib.ExitStack() as stack:
        # A signal ends us as an exception does: the processes are killed, and the files removed.
        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            if signal.getsignal(number) is signal.SIG_DFL:  # ``nohup`` ignores one.
                stack.callback(signal.signal, number, signal.SIG_DFL)
                signal.signal(number, _end)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="optax-dtypefix-"))
        started = {}
        for name, variables in ways.items():
            path = os.path.join(folder, f"{name}.jsonl")
            # No pipe: a process that the user's program leaves behind would hold it open.
            stderr = stack.enter_context(
                tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
            )
            process = _start([function, path, *arguments], variables, stderr)
            stack.callback(process.wait)
            stack.callback(process.kill)  # First. What has ended notices nothing.
            started[name] = process, path, stderr
        while meanwhile and any(process.poll() is None for process, *_ in started.values()):
            time.sleep(_PAUSE)
            meanwhile([Written(_entries(path), 0) for _, path, _ in started.values()])
        written = {}
        for name, (process, path, stderr) in started.items():
            code, entries = process.wait(), _entries(path)
            if not entries:
                stderr.seek(0)
                failed = f"the process with {name} optax failed:\n{stderr.read()}"
                raise NoOptaxError(f"{failed}{mixed_installation()}")
            written[name] = Written(entries, code)
        return written


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def lines_to(path: str) -> Iterator[Callable[..., None]]:
    """In such a process: yield a function that writes its keyword arguments as a line.

    Each line is written at once, so that a crash loses none of the earlier ones.
    """
    with open(path, "w", encoding="utf-8") as file:
        yield lambda **fields: print(json.dumps(fields), file=file, flush=True)


def counts_so_far() -> dict[str, int]:
    """Return for each patch how often it was reached."""
    return {patch_id: slot.tally.reached for patch_id, slot in get_engine().slots.items()}


def patches_at_work(before: dict[str, int]) -> list[str]:
    """Return the patches that were reached since then."""
    return [patch_id for patch_id, now in counts_so_far().items() if now > before[patch_id]]


def _start(
    arguments: Sequence[str], variables: Mapping[str, str], stderr: Any
) -> subprocess.Popen[bytes]:
    script = _SCRIPT.format(path=[entry for entry in sys.path if isinstance(entry, str)])
    # From 3.13 on, Python imports ``linecache`` before the first line of the script.
    safe_path = ["-P"] if sys.version_info >= (3, 13) else []
    options = ["-I"] if sys.flags.isolated else safe_path
    return subprocess.Popen(
        [sys.executable, *options, "-c", script, *arguments],
        env=_environment(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )


def _entries(path: str) -> list[Any]:
    """Read the lines that were written in full."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    environment = {**os.environ, **variables}
    # Dtype faults are the same on all devices, and the accelerator may be in use.
    environment.setdefault("JAX_PLATFORMS", "cpu")
    # The reproducers choose their own JAX modes: 64 bits, strict promotion or NaN checks in the
    # environment would change the outcomes. Warnings are not part of the contract. A worker is no
    # run of the user: it must not replace the report, and stock differs from it.
    unwanted = ("PYTHONWARNINGS", "OPTAX_DTYPEFIX_REPORT", "OPTAX_DTYPEFIX_REQUIRE")
    for name in list(environment):
        mode = name.startswith("JAX_") and not name.startswith("JAX_PLATFORM")
        if mode or name in unwanted:
            del environment[name]
    return environment
