"""An upgrade in the clone of an older version installs this version, and no file of the older."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from support.pages import ROOT, blocks, read
from support.processes import environment

OLD = "e61cf3234cdc40434cd8b5e805d3ec6ab6daa198"
"""1.2.0. It leaves `build/` with packages where later versions have modules: `patches/sums/`."""

INSTALLS = {
    "pip": ("-m", "pip", "install", "--quiet", "--no-deps"),
    "uv": ("-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", "{env}"),
}
WHEELS = {
    "pip without isolation": ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w"),
    "build": ("-m", "build", "--wheel", "--outdir"),
    "build by way of an sdist": ("-m", "build", "--outdir"),
    "uv": ("-m", "uv", "build", "--wheel", "--out-dir"),
}


def call(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder, and return what it printed. It must succeed."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def git(*arguments: str, clone: Path) -> str:
    return call("git", *arguments, folder=clone)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clone, and install the older version from the clone."""
    folder = tmp_path_factory.mktemp("beside")
    git("clone", "--quiet", str(ROOT), "optax-dtypefix", clone=folder)
    clone = folder / "optax-dtypefix"
    has_old = subprocess.run(["git", "cat-file", "-e", OLD], cwd=clone, check=False)
    assert has_old.returncode == 0, "no 1.2.0 in this clone: run `git fetch --unshallow`"
    git("checkout", "--quiet", OLD, clone=clone)
    call(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, clone, folder=folder)
    assert (clone / "build/lib/optax_dtypefix/patches/sums/__init__.py").exists()
    return clone


def environment_with(installed: Path) -> Path:
    """Make an environment with pip, which finds optax and jax in that of the tests."""
    venv.create(installed, with_pip=True)
    (packages,) = installed.glob("lib/python*/site-packages")
    (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return installed / "bin" / "python"


@pytest.mark.parametrize("installer", INSTALLS)
def test_the_program_of_the_readme_prints_what_it_says(
    old: Path, tmp_path: Path, installer: str
) -> None:
    python = environment_with(tmp_path / "env")
    program, printed = (text for _, text in blocks(read(ROOT / "README.md"))[:2])
    options = [option.format(env=python) for option in INSTALLS[installer]]
    own = sys.executable if installer == "uv" else python
    for version in (OLD, git("rev-parse", "HEAD", clone=ROOT).strip()):
        git("checkout", "--quiet", version, clone=old)
        call(own, *options, "./optax-dtypefix", folder=old.parent)
    assert call(python, "-c", program, folder=tmp_path) == printed
    place = "import optax_dtypefix; print(optax_dtypefix.__file__)"
    assert str(tmp_path) in call(python, "-c", place, folder=tmp_path)


@pytest.mark.parametrize("builder", WHEELS)
def test_a_wheel_has_the_files_of_this_version_and_no_other(
    old: Path, tmp_path: Path, builder: str
) -> None:
    git("checkout", "--quiet", git("rev-parse", "HEAD", clone=ROOT).strip(), clone=old)
    call(sys.executable, *WHEELS[builder], tmp_path, old, folder=old.parent)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    tracked = git("ls-files", "optax_dtypefix", "patches", clone=ROOT).split()
    folders = {"patches": "optax_dtypefix/patches", "optax_dtypefix": "optax_dtypefix"}
    wanted = {
        os.path.join(folders[top], rest) for top, _, rest in (n.partition("/") for n in tracked)
    }
    assert packed == wanted | {"optax_dtypefix/files.json"}
    assert (old / "build" / "lib").exists()
