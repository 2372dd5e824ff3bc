"""``run``: start Python itself on an unmodified script or module, under the shim.

The program has Python's own ``__main__``, tracebacks and exit codes. All that differs is a folder
that comes first on PYTHONPATH: its ``sitecustomize.py`` imports the shim when Python starts. The
processes that the program starts inherit the variable.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from .. import __path__ as _ours

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER = os.path.join(os.path.abspath(_ours[0]), "_startup")


def run(program: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run ``python program...`` with these variables; on POSIX in place of this process.

    Returns:
      The exit code of the program; 2, with a message, if this Python would not read PYTHONPATH or
      cannot be started.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        print(
            "optax-dtypefix run: under -I, -E and -S Python does not import the shim, so the "
            "program would run stock optax. Leave the option out. With -I or -E, you can also run "
            "`python -m optax_dtypefix activate`.",
            file=sys.stderr,
        )
        return 2
    path = os.environ.get("PYTHONPATH")
    environment = {**os.environ, **variables, "PYTHONPATH": FOLDER}
    if path:
        environment["PYTHONPATH"] += os.pathsep + path
    command = [sys.executable, *_options(), *program]
    try:
        if os.name == "nt":  # There, ``exec`` starts another process and ends this one at once.
            return subprocess.run(command, env=environment, check=False).returncode
        os.execve(sys.executable, command, environment)
    except OSError as error:
        print(
            f"optax-dtypefix run: cannot start {sys.executable}: {error.strerror}. PYTHONPATH has "
            f"{len(environment['PYTHONPATH'])} characters; systems have a limit. Shorten it, or "
            f"run `python -m optax_dtypefix activate`.",
            file=sys.stderr,
        )
        return 2


def _options() -> list[str]:
    """Return the options that this Python was started with."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    stdout: Any = sys.stdout
    return [*options, "-u"] if getattr(stdout, "write_through", False) else options
