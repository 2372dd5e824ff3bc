"""Runs a script in a process of its own, with the real optax."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PRELUDE = """
    import sys

    def backends():
        return list(sys.modules["jax"]._src.xla_bridge._backends)

    def stock(function):
        return type(function).__name__ == "function"
"""


def run(folder: Path, script: str, *options: str, **variables: str) -> str:
    """Runs it in a folder and returns what it printed. Nothing may complain of us on stderr.

    Args:
      folder: where the script finds modules of its own.
      script: the source.
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
    """Runs it whatever comes of it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPTAX_DTYPEFIX")}
    environment.update(variables, JAX_PLATFORMS="cpu")
    file = folder / "script.py"
    file.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(script))
    command = [sys.executable, *options, str(file)]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
