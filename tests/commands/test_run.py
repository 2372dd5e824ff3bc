"""The ``run`` command prints and returns what Python itself does."""

from __future__ import annotations

import py_compile
import textwrap
import zipapp
from typing import TYPE_CHECKING

import pytest

from support.processes import Python

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = {
    "surroundings": """
        "A docstring."
        import json, sys
        import neighbour
        print(sys.argv, __name__, __file__, __doc__, __spec__, __package__, sys.path[0])
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


@pytest.mark.parametrize("name", PROGRAMS)
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
print(sys.argv, __name__, __file__, __doc__, __package__, repr(sys.path[0]), type(__loader__))
print(sorted(set(globals()) - {"__annotations__"}), __spec__ and (__spec__.name, __spec__.origin))
print(sys.modules["__main__"].__dict__ is globals())
1 / 0
"""


@pytest.mark.parametrize("option", [(), ("-I",)], ids=["plain", "isolated"])
@pytest.mark.parametrize("what", ["app", "app/", "app.pyz", "app/program.pyc", "-", "empty"])
def test_what_python_runs_besides_sources(
    python: Python, tmp_path: Path, what: str, option: tuple[str, ...]
) -> None:
    main = tmp_path / "app" / "__main__.py"
    main.parent.mkdir()
    main.write_text(REPORTS_ON_ITSELF)
    for folder in (main.parent, tmp_path):
        (folder / "neighbour.py").touch()
    (tmp_path / "empty").mkdir()
    py_compile.compile(str(main), str(main.parent / "program.pyc"))
    zipapp.create_archive(main.parent, tmp_path / "app.pyz")
    call = [what, "--json", "-m", "x"]
    with main.open() as stdin:
        plain = python(*option, *call, stdin=stdin)
    with main.open() as stdin:
        shimmed = python(*option, "-m", "optax_dtypefix", "run", *call, stdin=stdin)
    assert (shimmed.stdout, shimmed.returncode) == (plain.stdout, plain.returncode)
    if what == "empty":
        assert shimmed.stderr == "optax-dtypefix run: can't find '__main__' module in 'empty'\n"
    else:
        last = "ZeroDivisionError: division by zero" if plain.stdout else "No module named 'neighb"
        assert last in shimmed.stderr.splitlines()[-1]
        assert "optax_dtypefix" not in shimmed.stderr


@pytest.mark.parametrize("name", ["package.module", "package", "single"])
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


def test_a_traceback_shows_only_the_module(command: Python, tmp_path: Path) -> None:
    (tmp_path / "single.py").write_text("def fail():\n    1 / 0\n\nfail()\n")
    run = command("run", "-m", "single")
    lines = [line for line in run.stderr.splitlines() if line.startswith("  File")]
    assert lines == [
        f'  File "{tmp_path}/single.py", line 4, in <module>',
        f'  File "{tmp_path}/single.py", line 2, in fail',
    ]
    assert run.returncode == 1


def test_a_missing_dependency_is_shown(command: Python, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import no_such_dependency")
    run = command("run", "-m", "package.module")
    assert run.returncode == 1
    assert "No module named 'no_such_dependency'" in run.stderr
    assert "optax_dtypefix" not in run.stderr


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (["none.py"], 2, "can't open file 'none.py': No such file or directory"),
        (["--", "-none.py"], 2, "can't open file '-none.py': No such file or directory"),
        (["-m", "none"], 1, "there is no runnable module 'none'"),
        (["-m", "none.at.all"], 1, "there is no runnable module 'none.at.all'"),
        (["-m", "json"], 1, "there is no runnable module 'json'"),
    ],
)
def test_unrunnable_programs(command: Python, call: list[str], code: int, message: str) -> None:
    run = command("run", *call)
    assert (run.returncode, run.stdout) == (code, "")
    assert run.stderr == f"optax-dtypefix run: {message}\n"


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


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
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
