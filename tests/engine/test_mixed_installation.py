"""Files of another version among those of this one are said, and tell a report from a good one."""

from __future__ import annotations

import compileall
import json
import runpy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import optax_dtypefix
from support.pages import ROOT
from support.processes import Python
from support.scripts import FROM_ARCHIVES
from support.thorough import one_of

if TYPE_CHECKING:
    from collections.abc import Callable

IGNORED = shutil.ignore_patterns("__pycache__", "patches", "files.json")
PATCHES = Path(optax_dtypefix.patches.__path__[0])


def add_package(patches: Path) -> None:
    """As `build/` of a clone added it: Python prefers it to the module beside it."""
    (patches / "sums").mkdir()
    (patches / "sums" / "__init__.py").write_text("from .._contract.of_before import gone\n")


def add_module(patches: Path) -> None:
    (patches / "every_transform.py").touch()


def change(patches: Path) -> None:
    with (patches / "sums.py").open("a") as file:
        file.write("# Of another version.\n")


def delete(patches: Path) -> None:
    (patches / "sums.py").unlink()


MIXED = {
    "patches/sums/__init__.py (added)": add_package,
    "patches/every_transform.py (added)": add_module,
    "patches/sums.py (changed)": change,
    "patches/sums.py (missing)": delete,
}
MIXED_CLONE = {
    said: MIXED[said] for said in ("patches/sums/__init__.py (added)", "patches/sums.py (missing)")
}


def installed(folder: Path) -> Path:
    """Install a copy as a wheel does, with the list of its files. Return its patches."""
    package = folder / "optax_dtypefix"
    shutil.copytree(optax_dtypefix.__path__[0], package, ignore=IGNORED)
    shutil.copytree(PATCHES, package / "patches", ignore=IGNORED)
    runpy.run_path(str(ROOT / "setup.py"))["list_files"](package)
    return package / "patches"


def cloned(folder: Path) -> Path:
    shutil.copytree(optax_dtypefix.__path__[0], folder / "optax_dtypefix", ignore=IGNORED)
    shutil.copytree(PATCHES, folder / "patches", ignore=IGNORED)
    return folder / "patches"


def status_of(command: Python, code: int) -> Any:
    done = command("status", "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("said", one_of(4, MIXED))
def test_status_says_it_in_one_line_and_the_digest_differs(command: Python, said: str) -> None:
    patches = installed(command.folder)
    good = status_of(command, 0)
    MIXED[said](patches)
    mixed = status_of(command, 1)
    assert good["installation"] == ""
    assert f"{patches.parent} are not those of optax-dtypefix" in mixed["installation"]
    assert f"{optax_dtypefix.__version__}: {said}." in mixed["installation"]
    assert "-m pip uninstall optax-dtypefix`, delete " in mixed["installation"]
    assert mixed["digest"] != good["digest"]
    assert mixed["applied"] == [*good["applied"], "files of another version"]
    assert mixed["installation"] in command("status").stdout.splitlines()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["_engine/engine.py", "_diagnosis/report.py"])
def test_a_missing_file_of_the_command_is_said_in_one_line(command: Python, name: str) -> None:
    (installed(command.folder).parent / name).unlink()
    done = command("status")
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert f": {name} (missing). " in said
    assert "-m pip uninstall optax-dtypefix`, delete " in said


@pytest.mark.thorough
def test_many_files_are_counted(command: Python) -> None:
    patches = installed(command.folder)
    for name in "abcdef":
        (patches / f"{name}.py").touch()
    (patches / "__pycache__").mkdir()
    (patches / "__pycache__" / "x.cpython-311.pyc").touch()
    said = status_of(command, 1)["installation"]
    added = ", ".join(f"patches/{name}.py (added)" for name in "abc")
    assert f": {added} and 3 more. " in said


@pytest.mark.thorough
@pytest.mark.parametrize("said", MIXED_CLONE)
def test_a_clone_says_what_no_version_has(command: Python, said: str) -> None:
    patches = cloned(command.folder)
    change(patches)
    add_module(patches)
    assert status_of(command, 0)["installation"] == ""
    MIXED[said](patches)
    mixed = status_of(command, 1)["installation"]
    assert f": {said}. " in mixed
    assert "`git status` in the clone" in mixed


def as_bytecode(folder: Path) -> Python:
    compileall.compile_dir(folder / "optax_dtypefix", quiet=1, legacy=True)
    for source in (folder / "optax_dtypefix").rglob("*.py"):
        source.unlink()
    return Python(folder, ("-m", "optax_dtypefix"))


def in_an_archive(folder: Path) -> Python:
    main = "from optax_dtypefix._commands.main import main; raise SystemExit(main())\n"
    (folder / "__main__.py").write_text(main)
    archive = shutil.make_archive(str(folder / "app"), "zip", folder)
    shutil.rmtree(folder / "optax_dtypefix")
    return Python(folder, (archive,))


@pytest.mark.thorough
@pytest.mark.parametrize("form", [as_bytecode, pytest.param(in_an_archive, marks=FROM_ARCHIVES)])
def test_other_forms_of_an_installation(tmp_path: Path, form: Callable[[Path], Python]) -> None:
    add_module(installed(tmp_path))
    command = form(tmp_path)
    assert "every_transform.py" in status_of(command, 1)["installation"]


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["optax", "optax_dtypefix"])
def test_strict_mode_stops_the_import(python: Python, first: str) -> None:
    change(installed(python.folder))
    imports = sorted(["optax", "optax_dtypefix"], key=first.__ne__)
    done = python("-c", f"import {imports[0]}, {imports[1]}", OPTAX_DTYPEFIX_STRICT="1")
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "OptaxDtypeFixError: Files in " in said
    assert "patches/sums.py (changed)" in said
    off = {"OPTAX_DTYPEFIX_STRICT": "1", "OPTAX_DTYPEFIX": "off"}
    assert python("-c", "import optax_dtypefix, optax", **off).returncode == 0


@pytest.mark.thorough
def test_a_required_record_stops_the_import(python: Python) -> None:
    patches = installed(python.folder)
    program = ("-c", "import optax_dtypefix, optax")
    assert python(*program, OPTAX_DTYPEFIX_REPORT="good.json").returncode == 0
    require = {"OPTAX_DTYPEFIX_REQUIRE": "good.json"}
    assert python(*program, **require).returncode == 0
    change(patches)
    before = (python.folder / "good.json").read_text()
    done = python(*program, OPTAX_DTYPEFIX_REPORT="good.json", **require)
    assert done.returncode == 1
    assert "OptaxDtypeFixError: Files in " in done.stderr.splitlines()[-1]
    assert (python.folder / "good.json").read_text() == before


@pytest.mark.thorough
def test_a_report_has_it_and_warns(python: Python) -> None:
    change(installed(python.folder))
    program = "import optax_dtypefix, optax"
    done = python("-c", program, OPTAX_DTYPEFIX_REPORT="mixed.json")
    assert "OptaxDtypeFixWarning: Files in " in done.stderr
    report = json.loads((python.folder / "mixed.json").read_text())
    assert "patches/sums.py (changed)" in report["installation"]
    assert "files of another version" in report["applied"]
