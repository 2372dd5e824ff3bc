"""The ``run`` command prints and returns what Python itself does."""

from __future__ import annotations

import py_compile
import sysconfig
import textwrap
import zipapp
from pathlib import Path

import pytest

import optax_dtypefix
from optax_dtypefix._commands.run import run
from support.processes import Python
from support.thorough import one_of

PROGRAMS = {
    "surroundings": """
        "A docstring."
        import json, sys
        import neighbour
        print(sys.argv, __name__, __file__, __doc__, __spec__, __package__, sys.path)
        print(sorted(set(globals()) - {"__annotations__"}), type(__builtins__), type(__loader__))
        print(sys.modules["__main__"].__dict__ is globals())
        """,
    "no inherited future": """
        def f(x: 1 + 1): ...
        print(f.__annotations__)
        """,
    "exit with a number": "import sys; sys.exit(7)",
    "exit with nothing": "import sys; sys.exit()",
    "exit with words": "import sys; sys.exit('it is over')",
    "exception": """
        def fail():
            raise ValueError("no")
        fail()
        """,
    "chained exception": """
        def fail():
            raise ValueError("no")
        try:
            fail()
        except ValueError as error:
            raise KeyError("neither") from error
        """,
    "syntax error": "x = = 1",
    "warning": "import warnings; warnings.warn('old', DeprecationWarning)",
    "hook of its own": """
        import sys
        import traceback
        def show(kind, error, tb):
            print("seen", kind, traceback.format_tb(tb))
        sys.excepthook = show
        1 / 0
        """,
    "interrupt": "raise KeyboardInterrupt",
    "pickles": """
        import pickle
        class Config: ...
        print(type(pickle.loads(pickle.dumps(Config()))) is Config)
        """,
    "pickles at exit": """
        import atexit, pickle
        class Config: ...
        atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Config()))) is Config))
        """,
    "outlived by a thread": """
        import pickle, threading
        class Config: ...
        def work():
            threading.main_thread().join()
            print(type(pickle.loads(pickle.dumps(Config()))) is Config)
        threading.Thread(target=work).start()
        """,
    "spawns": """
        import multiprocessing
        class Config: ...
        def double(x):
            return type(x).__name__, type(x).__module__
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [Config()]))
        """,
}


@pytest.mark.parametrize("name", one_of(4, PROGRAMS))
def test_a_script_runs_as_python_runs_it(python: Python, tmp_path: Path, name: str) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "neighbour.py").touch()
    (tmp_path / "scripts" / "program.py").write_text(textwrap.dedent(PROGRAMS[name]))
    call = ["scripts/program.py", "--json", "-m", "x", "--", "--help"]
    plain = python(*call)
    shimmed = python("-m", "optax_dtypefix", "run", *call)
    assert shimmed.stdout == plain.stdout
    assert shimmed.stderr == plain.stderr
    assert shimmed.returncode == plain.returncode


REPORTS_ON_ITSELF = """
import sys
import neighbour
print(sys.argv, __name__, __file__, __doc__, __package__, sys.path, type(__loader__))
print(sorted(set(globals()) - {"__annotations__"}), __spec__ and (__spec__.name, __spec__.origin))
print(sys.modules["__main__"].__dict__ is globals(), sys.flags, sys.stdout.write_through)
1 / 0
"""


@pytest.mark.parametrize(
    "what", one_of(7, ["app", "app/", "app.pyz", "app/program.pyc", "-", "empty", "no"])
)
def test_what_python_runs_besides_sources(python: Python, tmp_path: Path, what: str) -> None:
    main = tmp_path / "app" / "__main__.py"
    main.parent.mkdir()
    main.write_text(REPORTS_ON_ITSELF)
    for folder in (main.parent, tmp_path):
        (folder / "neighbour.py").touch()
    (tmp_path / "empty").mkdir()
    py_compile.compile(str(main), str(main.parent / "program.pyc"))
    zipapp.create_archive(main.parent, tmp_path / "app.pyz")
    call = [what, "--json", "-m", "x"]
    options = ["-u", "-O", "-W", "error::ImportWarning", "-X", "dev"]
    with main.open() as stdin:
        plain = python(*options, *call, stdin=stdin)
    with main.open() as stdin:
        shimmed = python(*options, "-m", "optax_dtypefix", "run", *call, stdin=stdin)
    assert (shimmed.stdout, shimmed.returncode) == (plain.stdout, plain.returncode)
    assert shimmed.stderr == plain.stderr


@pytest.mark.parametrize("name", one_of(3, ["package.module", "package", "single"]))
def test_a_module_runs_as_python_runs_it(python: Python, tmp_path: Path, name: str) -> None:
    program = textwrap.dedent(
        """
        import sys
        print(sys.argv, __name__, __file__, __package__, type(__loader__), sys.path[0])
        print(__spec__.name, __spec__.origin, __spec__.parent, __doc__)
        print(sorted(set(globals()) - {"__annotations__"}))
        print(sys.modules["__main__"].__dict__ is globals())
        sys.exit(5)
        """
    )
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import sys; print(sys.argv)")
    for file in ("package/module.py", "package/__main__.py", "single.py"):
        (tmp_path / file).write_text(program)
    call = ["-m", name, "--json", "-m", "x", "--", "--help"]
    plain = python(*call)
    shimmed = python("-m", "optax_dtypefix", "run", *call)
    assert shimmed.stdout == plain.stdout
    assert (shimmed.stderr, shimmed.returncode) == (plain.stderr, plain.returncode) == ("", 5)


@pytest.mark.parametrize(
    "call", one_of(4, [["none.py"], ["--", "-none.py"], ["-m", "none"], ["-m", "json"]])
)
def test_unrunnable_programs(python: Python, call: list[str]) -> None:
    plain, shimmed = python(*call), python("-m", "optax_dtypefix", "run", *call)
    assert shimmed.returncode == plain.returncode > 0
    assert (shimmed.stdout, shimmed.stderr) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize("option", one_of(3, ["-I", "-E", "-S"]))
def test_options_that_would_leave_the_program_on_stock_are_refused(
    python: Python, tmp_path: Path, option: str
) -> None:
    (tmp_path / "train.py").write_text("print('on')")
    command = ("-c", "from optax_dtypefix._commands.main import main; raise SystemExit(main())")
    if option == "-S":  # Then site-packages are not on the path.
        site = sysconfig.get_path("purelib")
        root = Path(optax_dtypefix.__file__).parents[1]
        command = ("-c", f"import sys; sys.path += [{site!r}, {str(root)!r}]; {command[1]}")
    run = python(option, *command, "run", "train.py")
    assert (run.returncode, run.stdout) == (2, "")
    assert "would run stock optax" in run.stderr


CUSTOM = """
import sys
print({name!r}, "optax_dtypefix" in sys.modules, __name__, vars(sys.modules[__name__]) is globals())
"""


@pytest.mark.thorough
def test_a_sitecustomize_of_the_user_runs_too(python: Python, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    program = "import sys, sitecustomize; print(sys.path, sitecustomize)"
    (tmp_path / "train.py").write_text(program)
    for name in ("sitecustomize", "usercustomize"):
        (folder / f"{name}.py").write_text(CUSTOM.format(name=name))
    plain = python("train.py", PYTHONPATH=str(folder))
    shimmed = python("-m", "optax_dtypefix", "run", "train.py", PYTHONPATH=str(folder))
    assert plain.stdout.startswith("sitecustomize False sitecustomize True\n")
    expected = plain.stdout.replace("customize False", "customize True")
    # The command itself runs them too, before it starts Python on the program.
    assert shimmed.stdout.endswith(expected)
    assert shimmed.stderr == plain.stderr == ""
    (folder / "sitecustomize.py").write_text("1 / 0")
    plain = python("train.py", PYTHONPATH=str(folder))
    shimmed = python("-m", "optax_dtypefix", "run", "train.py", PYTHONPATH=str(folder))
    assert plain.stderr in shimmed.stderr
    assert "optax_dtypefix" not in shimmed.stderr


def test_the_program_is_patched(command: Python, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import optax, sys
            from optax import MultiSteps
            print(sys.modules["optax_dtypefix"].original(MultiSteps.update) is MultiSteps.update)
            """
        )
    )
    run = command("run", "--", "train.py", OPTAX_DTYPEFIX_ONLY="multi_steps")
    assert (run.stdout, run.stderr, run.returncode) == ("False\n", "", 0)


def test_subprocesses_are_patched(command: Python, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import subprocess, sys
            code = "import sys; print('optax_dtypefix' in sys.modules)"
            for option in ([], ["-s"], ["-E"]):
                subprocess.run([sys.executable, *option, "-c", code], check=True)
            """
        )
    )
    run = command("run", "train.py")
    assert (run.stdout, run.stderr, run.returncode) == ("True\nTrue\nFalse\n", "", 0)


@pytest.mark.thorough
def test_a_shim_that_cannot_be_imported_stops_what_imports_optax(
    command: Python, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import os, subprocess, sys
            for code in ("print('fine')", "import optax"):
                variables = {**os.environ, "OPTAX_DTYPEFIX": "of"}
                subprocess.run([sys.executable, "-c", code], env=variables)
            """
        )
    )
    run = command("run", "train.py")
    assert run.stdout == "fine\n"
    assert "OptaxDtypeFixError: OPTAX_DTYPEFIX='of' is not valid" in run.stderr.splitlines()[-1]


@pytest.mark.parametrize("method", one_of(2, ["spawn", "forkserver"]))
def test_child_processes_are_patched(command: Python, tmp_path: Path, method: str) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, sys
            SHIMMED_FIRST = "optax_dtypefix" in sys.modules
            def shimmed(queue, deeper):
                queue.put(SHIMMED_FIRST)
                if deeper:
                    start(queue, deeper - 1)
            def start(queue, deeper):
                child = CONTEXT.Process(target=shimmed, args=(queue, deeper))
                child.start()
                child.join()
            CONTEXT = multiprocessing.get_context("{method}")
            if __name__ == "__main__":
                queue = CONTEXT.Manager().Queue()
                start(queue, 1)
                print([queue.get(), queue.get()])
            """
        )
    )
    run = command("run", "train.py")
    assert (run.stdout, run.stderr, run.returncode) == ("[True, True]\n", "", 0)


@pytest.mark.thorough
def test_a_path_that_is_too_long_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "x" * 10_000_000)
    assert run(["train.py"], {}) == 2
    error = capsys.readouterr().err
    assert error.startswith("optax-dtypefix run: cannot start ")
    assert "Argument list too long. PYTHONPATH has 10000" in error


@pytest.mark.thorough
def test_verbose_logs_what_is_applied(command: Python) -> None:
    script = "import sys\nimport optax\nprint(sys.argv)"
    (command.folder / "train.py").write_text(script, encoding="utf-8")
    for level, lines in (("", 1), ("warning", 0)):
        options = ("-v", "--report", "run.json", "train.py", "-v")
        done = command("run", *options, OPTAX_DTYPEFIX_LOG=level, OPTAX_DTYPEFIX_ONLY="fromage")
        assert (done.returncode, done.stdout) == (0, "['train.py', '-v']\n")
        assert done.stderr.count("1 patch on optax ") == lines


def test_what_a_variable_has_wrong_is_said_once(command: Python) -> None:
    done = command("run", "-m", "sysconfig", "run", OPTAX_DTYPEFIX_DISABLE="prodgy")
    assert done.stderr.count("OptaxDtypeFixWarning: Unknown patch 'prodgy'") == 1
    assert done.returncode == 0
