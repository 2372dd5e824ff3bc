"""Runs Python in a process of its own, which every test of the command needs."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Python:
    """Python in a folder, there with these first arguments."""

    folder: Path
    first: tuple[str, ...] = ()

    def __call__(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs it with variables set. Those that a developer may have set do not reach it."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OPTAX_DTYPEFIX", "JAX_")) and name != "COLUMNS"
        }
        return subprocess.run(
            [sys.executable, *self.first, *arguments],
            cwd=self.folder,
            env={**inherited, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def at_start(self, code: str) -> str:
        """The PYTHONPATH under which every process runs this code before anything else."""
        folder = self.folder / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(textwrap.dedent(code))
        return str(folder)
