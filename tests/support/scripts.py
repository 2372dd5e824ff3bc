"""Run a script in a new process, with the real optax."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from support import processes

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

PRELUDE = """
    import sys

    def backends():
        return list(sys.modules["jax"]._src.xla_bridge._backends)

    def stock(function):
        return type(function).__name__ == "function"
"""


FROM_ARCHIVES = pytest.mark.skipif(
    sys.version_info < (3, 10),
    reason="Python 3.9 loads from zip archives without exec_module: the import warns",
)


def run(folder: Path, script: str, *options: str, **variables: str) -> str:
    """Run a script and return what it printed. Nothing on stderr may name optax_dtypefix.

    Args:
      folder: the current folder, which is on the module path.
      script: the source, after ``PRELUDE``.
      *options: of the interpreter.
      **variables: in place of all ``OPTAX_DTYPEFIX*`` variables that are set here.
    """
    done = start(folder, script, *options, **variables)
    assert done.returncode == 0, done.stderr
    assert "optax_dtypefix" not in done.stderr.lower(), done.stderr
    return done.stdout


def start(
    folder: Path, script: str, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script, whatever its exit code."""
    path = processes.write_script(folder, textwrap.dedent(PRELUDE) + textwrap.dedent(script))
    variables = {**processes.CACHE, **processes.QUICKLY, **variables}
    return processes.run(*options, path, folder=folder, **variables)
