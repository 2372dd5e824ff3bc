"""Unusual installations of optax, and unusual ways to start Python, are patched too."""

from __future__ import annotations

import compileall
import shutil
from pathlib import Path

import optax
import pytest

from support.scripts import FROM_ARCHIVES, run

SCRIPT = """
    sys.path[:0] = {path}
    import optax_dtypefix
    import optax
    print(optax.__file__.startswith(tuple({path} or [""])), end=" ")
    print(optax_dtypefix.is_applied("multi_steps"), end=" ")
    print({{s.state.value for s in optax_dtypefix.status()}} & {{"failed", "unsupported"}})

    import jax, jax.numpy as jnp
    params = {{"w": jnp.ones((2, 3), jnp.bfloat16)}}
    tx = optax.MultiSteps(optax.adafactor(0.1), 2)
    _, state = tx.update(params, tx.init(params), params)
    optax_dtypefix.check(tx, params).raise_if_broken()
"""
PATCHED = "True True set()\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the installed package, without its own tests."""
    installed = Path(optax.__file__).parent
    ignored = shutil.ignore_patterns("*_test.py", "__pycache__")
    shutil.copytree(installed, tmp_path / "site" / "optax", ignore=ignored)
    return tmp_path / "site"


@pytest.mark.thorough
def test_interpreter_options(tmp_path: Path) -> None:
    """-I is -E and -s, and more."""
    assert run(tmp_path, SCRIPT.format(path=[]), "-O", "-I") == PATCHED


@pytest.mark.thorough
def test_bytecode_without_sources(tmp_path: Path, copy: Path) -> None:
    compileall.compile_dir(copy, quiet=1, legacy=True)
    for source in copy.rglob("*.py"):
        source.unlink()
    assert run(tmp_path, SCRIPT.format(path=[str(copy)])) == PATCHED


@pytest.mark.thorough
@FROM_ARCHIVES
def test_a_zip_archive(tmp_path: Path, copy: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "packages"), "zip", copy)
    assert run(tmp_path, SCRIPT.format(path=[archive])) == PATCHED


@pytest.mark.thorough
def test_a_second_copy_earlier_on_the_path_which_is_read_only(tmp_path: Path, copy: Path) -> None:
    for folder in (copy, *(path for path in copy.rglob("*") if path.is_dir())):
        folder.chmod(0o555)
    try:
        assert run(tmp_path, SCRIPT.format(path=[str(copy)])) == PATCHED
    finally:
        for folder in (copy, *(path for path in copy.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
