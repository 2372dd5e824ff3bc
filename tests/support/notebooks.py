"""Run cells in the kernel of a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.processes import start, write_script

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path

_SCRIPT = """
import json, nbclient, nbformat.v4 as v4

cells = [v4.new_code_cell(source) for source in {sources}]
nbclient.execute(v4.new_notebook(cells=cells))
print(json.dumps(["".join(output["text"] for output in cell.outputs) for cell in cells]))
"""


def own_folders(folder: Path) -> dict[str, str]:
    """Return the variables with which IPython writes into a folder, not into the user's home."""
    return {name: str(folder) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}


def start_notebook(folder: Path, sources: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process that runs cells, and prints a JSON list of what each wrote."""
    write_script(folder, _SCRIPT.format(sources=list(sources)), "notebook.py")
    return start("notebook.py", folder=folder, **own_folders(folder))
