"""The import comes late in a notebook, in a script for IPython, and at its prompt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support.notebooks import own_folders, start_notebook
from support.processes import finish, start, write_script

if TYPE_CHECKING:
    from pathlib import Path

BUILD = """
import jax.numpy as jnp, optax
params = jnp.ones(3, jnp.bfloat16)
tx = optax.inject_hyperparams(optax.adamw)(0.01)
"""
IMPORT = "import optax_dtypefix\n"
CHECK = "print('now', optax_dtypefix.check(tx, params))\n"

WARNED = (
    "Built before the patches were applied, and still stock: inject_hyperparams. "
    "Build these optimizers again, or import optax_dtypefix first."
)


@pytest.mark.thorough
def test_what_was_built_before_is_named(tmp_path: Path) -> None:
    write_script(tmp_path, BUILD + IMPORT, "script.py")
    write_script(tmp_path, IMPORT + BUILD + IMPORT + CHECK, "prompt.py")
    shell = ("-m", "IPython", "-i", "--simple-prompt", "--no-banner", "--colors=NoColor")
    with open(tmp_path / "prompt.py", encoding="utf-8") as lines:
        notebook, prompt = finish(
            [
                start_notebook(tmp_path, [BUILD, IMPORT, IMPORT, CHECK]),
                start(
                    *shell,
                    "script.py",
                    folder=tmp_path,
                    stdin=lines,
                    **own_folders(tmp_path),
                    OPTAX_DTYPEFIX_STRICT="1",
                ),
            ],
            timeout=120,
        )
    assert notebook.returncode == 0, notebook.stderr
    _, late, again, checked = json.loads(notebook.stdout)  # Old releases of optax warn, too.
    assert WARNED in late
    assert WARNED not in again
    assert "or by a process without them, so still stock: inject" in checked

    # The script and the first line of the prompt are refused, until the optimizer is built again.
    assert prompt.stdout.count(f"OptaxDtypeFixError: {WARNED}") == 2, prompt.stdout
    assert "now dtypes: ok" in prompt.stdout
