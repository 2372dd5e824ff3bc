"""Other import hooks and patchers work beside the shim, or fail as they do without it."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from pathlib import Path

import optax
import pytest

from support import processes
from support.processes import write_script

BEFORE = """
import optax_dtypefix
"""
USE = """
import jax, jax.numpy as jnp, optax, optax.contrib
import optax_dtypefix
assert optax_dtypefix.is_applied("multi_steps")
params = {"w": jnp.ones((2, 3), jnp.bfloat16)}
tx = optax.MultiSteps(optax.adafactor(0.1), 2)
optax_dtypefix.check(tx, params).raise_if_broken()
print("patched")
"""
BEARTYPE = "from beartype.claw import beartype_package; beartype_package({!r})\n"
JAXTYPING = "from jaxtyping import install_import_hook; install_import_hook({!r}, {!r})\n"
TYPEGUARD = "from typeguard import install_import_hook; install_import_hook({!r})\n"
REWRITING = "import pytest; pytest.register_assert_rewrite('optax')\n"
OF_USERS = (
    BEARTYPE.format("users"),
    JAXTYPING.format("users", "beartype.beartype"),
    REWRITING,
)
OF_THE_SHIM = (
    TYPEGUARD.format("optax_dtypefix"),
    JAXTYPING.format("optax_dtypefix", "beartype.beartype"),
)


def run(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    write_script(folder, USE, "users.py")
    return processes.run(write_script(folder, script), folder=folder, **variables)


@pytest.mark.parametrize(
    "script",
    [
        *(hook + BEFORE for hook in (*OF_USERS, JAXTYPING.format("optax", None))),
        *(hook + BEFORE for hook in OF_THE_SHIM),
        *(BEFORE + hook for hook in OF_USERS),
        BEFORE + "import importlib, optax\nimportlib.reload(optax)\n",
    ],
)
def test_a_program_with_a_hook_is_patched(tmp_path: Path, script: str) -> None:
    done = run(tmp_path, script + "import users")
    assert done.stdout == "patched\n", done.stderr


def test_a_hook_on_optax_installed_after_the_shim_is_reported(tmp_path: Path) -> None:
    """The finder of jaxtyping is first then, and bypasses ours."""
    hooked = BEFORE + JAXTYPING.format("optax", None)
    done = run(tmp_path, hooked + "import optax\nimport that_is_not_there")
    assert "OptaxDtypeFixWarning: optax is not patched" in done.stderr
    assert "Call optax_dtypefix.apply()" in done.stderr
    done = run(tmp_path, hooked + "import optax\noptax_dtypefix.apply()\nimport users")
    assert done.stdout == "patched\n", done.stderr


@pytest.mark.parametrize(
    "hook", [BEARTYPE.format("optax"), JAXTYPING.format("optax", "beartype.beartype")]
)
def test_beartype_on_optax_fails_as_without_the_shim(tmp_path: Path, hook: str) -> None:
    stock = run(tmp_path, hook + BEFORE + "import users", OPTAX_DTYPEFIX="off")
    done = run(tmp_path, hook + BEFORE + "import users")
    if 'assert optax_dtypefix.is_applied("multi_steps")' in stock.stderr:  # Stock was imported.
        assert done.stdout == "patched\n", done.stderr
    else:
        errors = [line for line in stock.stderr.splitlines() if "Error" in line]
        assert errors == [line for line in done.stderr.splitlines() if "Error" in line] != []


@pytest.mark.parametrize("first", ["shim", "layer"])
def test_a_wrapt_wrapper_on_the_same_function(tmp_path: Path, first: str) -> None:
    layer = """
    import wrapt
    seen = []
    def count(wrapped, instance, args, kwargs):
        seen.append(wrapped.__name__)
        return wrapped(*args, **kwargs)
    import optax
    wrapt.wrap_function_wrapper("optax", "MultiSteps.update", count)
    """
    layer = textwrap.dedent(layer)
    hooks = BEFORE + "import optax\n" + layer if first == "shim" else layer + BEFORE
    done = run(tmp_path, hooks + "import users\nprint(set(seen))")
    assert done.stdout == "patched\n{'update'}\n", done.stderr


def test_autoreload_of_ipython(tmp_path: Path) -> None:
    """After a file of optax is edited in a session, its functions are still patched."""
    shutil.copytree(
        Path(optax.__file__).parent,
        tmp_path / "optax",
        ignore=shutil.ignore_patterns("*_test.py", "__pycache__"),
    )
    script = """
    import os, time
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "autoreload")
    shell.run_line_magic("autoreload", "2")
    shell.run_cell("import optax, optax._src.alias as alias")
    import optax._src.alias as alias
    with open(alias.__file__, "a") as file:
        file.write("\\nEDITED = True\\n")
    os.utime(alias.__file__, (time.time() + 5,) * 2)
    shell.run_cell("edited = alias.EDITED")
    assert shell.user_ns["edited"]
    optax_dtypefix.apply()
    assert not {s.state for s in optax_dtypefix.status()} & {"pending", "failed", "unsupported"}
    import users
    """
    done = run(tmp_path, BEFORE + textwrap.dedent(script))
    assert done.stdout.splitlines()[-1] == "patched", done.stdout + done.stderr
