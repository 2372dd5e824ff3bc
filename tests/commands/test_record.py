"""``run --report`` and ``--require``, and their variables, in real processes."""

from __future__ import annotations

import importlib.metadata
import json
from typing import TYPE_CHECKING, Any

import pytest

import optax_dtypefix
from support.processes import Python, write_script

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
    import multiprocessing, os, sys
    import optax

    def train():
        print(optax.__name__)

    if __name__ == "__main__":
        child = multiprocessing.get_context("spawn").Process(target=train)
        child.start()
        child.join()
        os.chdir("/")
        raise ValueError("the run ends badly")
    """


@pytest.fixture(scope="module")
def records(tmp_path_factory: Any) -> list[Path]:
    """The reports of a program that raises, and of the process that it spawned."""
    folder = tmp_path_factory.mktemp("run")
    write_script(folder, PROGRAM, "train.py")
    command = Python(folder, ("-m", "optax_dtypefix"))
    done = command("run", "--report=run-%p.json", "--", "train.py", OPTAX_DTYPEFIX_ONLY="fromage")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ValueError: the run ends badly"
    assert "optax_dtypefix" not in done.stderr
    found = sorted(folder.glob("run-*"))
    assert len(found) == 2
    return found


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_each_process_that_imports_optax_leaves_a_report(records: list[Path]) -> None:
    first, second = map(read, records)
    assert first == {**second, "settings": first["settings"]}
    assert first["finished"] is True  # Written at exit, although the program failed.
    assert first["optax_dtypefix_version"] == optax_dtypefix.__version__
    for package in ("optax", "jax", "jaxlib"):
        assert first[f"{package}_version"] == importlib.metadata.version(package)
    assert [p["id"] for p in first["patches"] if p["state"] == "applied"] == ["fromage"]
    assert first["settings"]["OPTAX_DTYPEFIX_ONLY"] == "fromage"


REPORT, REQUIRE = "OPTAX_DTYPEFIX_REPORT", "OPTAX_DTYPEFIX_REQUIRE"


@pytest.mark.thorough
def test_status_makes_a_record_and_replaces_none(command: Python, records: list[Path]) -> None:
    only = {"OPTAX_DTYPEFIX_ONLY": "fromage"}
    before = records[0].read_text()
    run = command("status", "--json", **only, **{REPORT: str(records[0])})
    assert (run.returncode, run.stderr) == (0, "")
    assert records[0].read_text() == before
    (command.folder / "pinned.json").write_text(run.stdout)
    (command.folder / "train.py").write_text("import optax; print('on')")
    same = command("run", "--require", "pinned.json", "train.py", **only)
    assert (same.returncode, same.stdout, same.stderr) == (0, "on\n", "")


@pytest.mark.thorough
def test_status_shows_the_difference(command: Python, records: list[Path]) -> None:
    run = command("status", OPTAX_DTYPEFIX="off", **{REQUIRE: str(records[0])})
    assert run.returncode == 1
    assert run.stdout.startswith("optax-dtypefix ")
    assert "raises an error: The packages or patches differ from the record" in run.stderr
    assert "  only recorded: fromage" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_program_without_optax_has_no_report(command: Python, tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("import sys; print(sys.argv); sys.exit(3)")
    run = command("run", "--report", "run.json", "tool.py", "--report", "x")
    assert (run.returncode, run.stdout) == (3, "['tool.py', '--report', 'x']\n")
    assert run.stderr == ""
    assert not (tmp_path / "run.json").exists()


def test_a_record_that_cannot_be_read_stops_the_run(command: Python, python: Python) -> None:
    (command.folder / "train.py").write_text("print('on')")
    run = command("run", "--require", "none.json", "train.py")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("optax-dtypefix run: Cannot read the record ")
    why = "none.json of OPTAX_DTYPEFIX_REQUIRE (--require): No such file or directory"
    assert why in run.stderr
    status = command("status", **{REQUIRE: "none.json"})
    assert (status.returncode, status.stdout) == (2, "")
    assert status.stderr.startswith("optax-dtypefix: Cannot read the record ")
    script = "import sys\ntry: import optax_dtypefix\nfinally: print(len(sys.meta_path))"
    plain = python("-c", "import sys; print(len(sys.meta_path))")
    imported = python("-c", script, **{REQUIRE: "none.json"})
    assert imported.stderr.splitlines()[-1].startswith("optax_dtypefix._errors.OptaxDtypeFixError")
    assert (imported.returncode, imported.stdout) == (1, plain.stdout)  # And nothing is patched.


@pytest.mark.parametrize("arguments", [["--report"], ["--report", "x"], ["--require=x"]])
def test_options_without_a_program_are_wrong_usage(command: Python, arguments: list[str]) -> None:
    run = command("run", *arguments)
    assert run.returncode == 2
    assert "usage: optax-dtypefix run [-h] [-v] [--report FILE] [--require FILE]" in run.stderr
