"""The worker process imports from the path of this process, and from nowhere else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from optax_dtypefix._diagnosis.import_optax import NoOptaxError
from optax_dtypefix._diagnosis.processes import Written, run_workers
from support import processes

if TYPE_CHECKING:
    from pathlib import Path

SHADOWED = ("ast", "importlib", "json", "linecache", "os", "re", "sitecustomize", "typing")


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with files that have the names of standard modules."""
    folder = tmp_path / "it's a {folder}"
    folder.mkdir()
    for name in SHADOWED:
        (folder / f"{name}.py").write_text("raise SystemExit(f'ran {__file__}')")
    (folder / "user.py").write_text(
        "import json, os\n"
        "def write(path):\n"
        "    open(path, 'w').write(json.dumps({'way': os.environ['WAY']}) + '\\n')\n"
    )
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("cwd")
def test_no_file_of_the_current_folder_runs() -> None:
    with pytest.raises(NoOptaxError) as why:
        run_workers("user:write", (), {"some": {}})
    assert "No module named 'user'" in str(why.value)


def test_it_finds_what_this_process_finds(
    cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "it's {mine}"
    modules.mkdir()
    (cwd / "user.py").rename(modules / "user.py")
    monkeypatch.setattr(sys, "path", [*sys.path, str(modules), modules])  # A Path is ignored.
    ways = {"one": {"WAY": "1"}, "other": {"WAY": "2"}}
    assert run_workers("user:write", (), ways) == {
        "one": Written([{"way": "1"}], 0),
        "other": Written([{"way": "2"}], 0),
    }


def test_what_is_written_is_seen_meanwhile(
    cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waiting.py").write_text(
        "import os, time\n"
        "def write(path, go):\n"
        "    with open(path, 'w') as file:\n"
        "        print('1', file=file, flush=True)\n"
        "        while not os.path.exists(go):\n"
        "            time.sleep(0.01)\n"
        "        print('2', file=file, flush=True)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    seen = []

    def meanwhile(written: list[Written]) -> None:
        entries = [found.entries for found in written]
        seen.append(entries)
        if entries == [[1], [1]]:
            (cwd / "go").touch()

    arguments = (str(cwd / "go"),)
    found = run_workers("waiting:write", arguments, {"one": {}, "other": {}}, meanwhile)
    assert [[1], [1]] in seen
    assert found == {"one": Written([1, 2], 0), "other": Written([1, 2], 0)}


def test_it_does_not_wait_for_threads_of_the_user(
    cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (cwd / "user.py").open("a") as file:
        file.write(
            "    import threading, time\n"
            "    late = lambda: (time.sleep(5), open('late', 'w'))\n"
            "    threading.Thread(target=late).start()\n"
        )
    monkeypatch.setattr(sys, "path", [*sys.path, str(cwd)])
    for name in SHADOWED:
        (cwd / f"{name}.py").unlink(missing_ok=True)
    assert run_workers("user:write", (), {"one": {"WAY": "1"}})["one"].code == 0
    assert not (cwd / "late").exists()


def test_in_isolated_mode_no_file_on_pythonpath_runs(cwd: Path, tmp_path: Path) -> None:
    script = """
        from optax_dtypefix._diagnosis.import_optax import NoOptaxError
        from optax_dtypefix._diagnosis.processes import run_workers
        try:
            run_workers("pathlib:Path", (), {"some": {}})
        except NoOptaxError as error:
            print(repr(str(error)))
        """
    path = processes.write_script(tmp_path, script)
    done = processes.run("-I", path, folder=cwd, PYTHONPATH=str(cwd))
    failed = "optax cannot be imported: the process with some optax failed:\n"
    assert (done.stdout, done.stderr) == (f"{failed!r}\n", "")
