"""The ``scan`` command: which functions with faults files use, without importing anything."""

from __future__ import annotations

import ast
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import (
    given,
    strategies as st,
)

from optax_dtypefix._commands.main import main
from optax_dtypefix._diagnosis.check_command.params import DTYPES
from optax_dtypefix._diagnosis.scan import results
from optax_dtypefix._diagnosis.scan.functions import KINDS, faults_of
from optax_dtypefix._diagnosis.scan.names import names_in
from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches.releases import TESTED

if TYPE_CHECKING:
    from support.processes import Python


def names(source: str) -> tuple[list[tuple[int, str]], list[int]]:
    """Return the uses without ``optax.``, and the lines that are not followed."""
    found = names_in(ast.parse(textwrap.dedent(source)))
    return sorted((use.line, use.path[6:]) for use in found.uses), sorted(found.unresolved)


def uses(source: str) -> list[tuple[int, str]]:
    found, unresolved = names(source)
    assert not unresolved
    return found


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("import optax\noptax.adamw(1)", "adamw"),
        ("import optax as ox\nox.contrib.prodigy()", "contrib.prodigy"),
        ("import optax.contrib\noptax.contrib.prodigy()", "contrib.prodigy"),
        ("import optax.contrib as oc\noc.prodigy()", "contrib.prodigy"),
        ("from optax import contrib\ncontrib.prodigy()", "contrib.prodigy"),
        ("from optax import contrib as oc\noc.prodigy()", "contrib.prodigy"),
        ("from optax.contrib import prodigy as p\np()", "contrib.prodigy"),
        ("import optax, functools\nfunctools.partial(optax.adamw, 1)", "adamw"),
        ("import optax\nox = optax; ox.adamw(1)", "adamw"),
        ("import optax\ngetattr(optax, 'adamw')(1)", "adamw"),
        ("import importlib\nimportlib.import_module('optax.contrib').prodigy()", "contrib.prodigy"),
        ("import pytest\npytest.importorskip('optax').adamw(1)", "adamw"),
        ("import optax\noptax.MultiSteps.update", "MultiSteps"),
        ("import optax\ntx: object = optax.adamw(1)", "adamw"),
        ("import optax\ndef f(tx=optax.adamw): pass", "adamw"),
        ("import optax\nx = [optax.adamw(r) for r in (1, 2)]", "adamw"),
        ("import optax\n@optax.inject_hyperparams\ndef f(): pass", "inject_hyperparams"),
        ("import optax\nf'{optax.adamw}'", "adamw"),
        ("import optax\nwith optax.adamw as x: pass", "adamw"),
    ],
)
def test_a_name_is_resolved_as_python_resolves_it(source: str, path: str) -> None:
    assert (2, path) in uses(source)


def test_several_uses_are_named_each() -> None:
    found = uses("import optax\noptax.inject_hyperparams(optax.adamw)(\n    optax.schedule())")
    assert found == [(2, "adamw"), (2, "inject_hyperparams"), (3, "schedule")]


@pytest.mark.parametrize(
    "source",
    [
        "import other\nother.adamw(1)",
        "from . import optax\noptax.adamw(1)",
        "from .optax import adamw\nadamw(1)",
        "from other import optax\noptax.adamw(1)",
        "import optax_dtypefix\noptax_dtypefix.status()",
        "def f(tx):\n    import optax\ntx.adamw(1)",
        "import optax\nif hasattr(optax, 'adamw'): pass",
        "x = x\nx.adamw(1)",
        "a = b; b = a\na.adamw(1)",
        "print('optax.adamw')  # optax.adamw",
    ],
)
def test_another_name_is_not_taken_for_optax(source: str) -> None:
    assert not uses(source)


def test_a_name_has_one_meaning_in_a_file_that_of_optax_if_it_is_bound_to_both() -> None:
    source = """
        import optax
        class A:
            optax = None
            def f(self):
                return optax.adamw(1)
        def g():
            import optax.contrib as optax
            return optax.prodigy()  # Looked up by the last part of its path.
        def h():
            global late
            import optax as late
        def i(optax):
            return late.sgd(1), optax.adam
        try:
            from optax import lion
        except ImportError:
            lion = None
        lion(1)
    """
    expected = [(6, "adamw"), (9, "prodigy"), (14, "adam"), (14, "sgd"), (19, "lion")]
    assert uses(source) == expected
    release = Release("0.2.3", tested=True)
    assert faults_of("optax.prodigy", release) == faults_of("optax.contrib.prodigy", release)


def test_an_import_that_is_not_used_counts_where_it_is_imported() -> None:
    assert uses("from optax import adamw, lion\nadamw(1)") == [(1, "lion"), (2, "adamw")]


@pytest.mark.parametrize(
    "source",
    [
        "from optax import *",
        "from optax.contrib import *",
        "import optax\ngetattr(optax, name)",
        "import optax\nvars(optax)",
        "import optax\nbuild(optax.contrib, 'prodigy')",
        "from optax import contrib\n[contrib]",
    ],
)
def test_what_cannot_be_resolved_is_counted_and_not_guessed(source: str) -> None:
    found, unresolved = names(source)
    assert unresolved == [source.count("\n") + 1]
    assert not [path for _, path in found if not path.endswith(("*", "contrib"))]


def test_a_program_may_be_nested_deeply() -> None:
    assert uses("import optax\n" + "+".join(["x"] * 900) + "\noptax.adamw(1)") == [(3, "adamw")]


@given(st.lists(st.sampled_from(["import optax", "optax.adamw", "x = optax", "def f(): pass"])))
def test_any_order_of_lines_is_read(lines: list[str]) -> None:
    found, _ = names("\n".join(lines))
    assert {line for line, _ in found} == {n for n, of in enumerate(lines, 1) if "adamw" in of}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a folder with one file that uses prodigy, and one that uses nothing."""
    (tmp_path / "train").mkdir()
    text = "import optax\n\ntx = optax.contrib.prodigy()\n"
    (tmp_path / "train" / "opt.py").write_text(text, encoding="utf-8")
    (tmp_path / "train" / "data.py").write_text("import json\n", encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("job")
def test_a_use_is_one_line_and_the_files_are_counted(command: Python) -> None:
    done = command("scan", "train", "--optax", "0.2.3")
    *found, summary = done.stdout.splitlines()
    assert found == [
        "train/opt.py:3: optax.contrib.prodigy: faults in any dtype on 0.2.3 (prodigy)"
    ]
    assert summary == (
        "1 of 2 files use functions with faults on optax 0.2.3."
        " `check FILE:FACTORY` tries one optimizer."
    )
    assert (done.returncode, done.stderr) == (1, "")


def test_neither_the_files_nor_jax_nor_optax_are_imported(python: Python, job: Path) -> None:
    (job / "broken.py").write_text("import optax\nraise SystemExit('imported')\n", encoding="utf-8")
    script = """
        import sys

        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("jax", "jaxlib", "optax", "numpy", "packaging"):
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Missing())
        from optax_dtypefix._commands.main import main

        assert main(["scan", ".", "--optax", "0.2.3,0.2.8"]) == 1
        assert not {"jax", "optax"} & set(sys.modules)
    """
    (job / "run.py").write_text(textwrap.dedent(script), encoding="utf-8")
    done = python("run.py")
    assert done.returncode == 0, done.stderr
    assert "train/opt.py:3: optax.contrib.prodigy" in done.stdout


def test_the_installed_release_is_the_default(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    import optax

    main(["scan", str(job)])
    assert capsys.readouterr().out.count(f"on optax {optax.__version__}") == 1


def test_without_optax_a_release_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    monkeypatch.setattr("optax_dtypefix._commands.main.installed", lambda *_: Release(""))
    assert main(["scan", str(job)]) == 3
    assert "Name a release: --optax" in capsys.readouterr().err


def as_json(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path, optax: str = "0.2.3"
) -> dict[str, Any]:
    main(["scan", "--json", "--optax", optax, *map(str, arguments)])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_everything(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    found = as_json(capsys, job, optax="0.1.5,0.2.3")
    use = {
        "file": str(job / "train" / "opt.py"),
        "place": "3",
        "function": "optax.contrib.prodigy",
        "arguments": [],
        "faults": {"0.1.5": {}, "0.2.3": {"prodigy": ["any dtype"]}},
    }
    assert found == {
        "releases": ["0.1.5", "0.2.3"],
        "files": 2,
        "uses": [use],
        "unresolved": [],
        "unparsed": [],
        "unread": 0,
        "dtypes": {"float32": 1},
        "only": [],
    }


def test_two_releases_are_compared(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    assert main(["scan", str(job), "--optax", "0.1.5,0.2.3"]) == 1
    use, summary = capsys.readouterr().out.splitlines()
    assert use.endswith("faults in any dtype on 0.2.3 (prodigy); none on 0.1.5")
    assert summary.startswith("0 of 2 files use functions with faults on optax 0.1.5, 1 on 0.2.3.")


def test_nothing_with_faults(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    assert main(["scan", str(job), "--optax", "0.1.5"]) == 0
    expected = "0 of 2 files use functions with faults on optax 0.1.5.\n"
    assert capsys.readouterr().out == expected


def test_a_release_that_is_not_tested_is_named(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    main(["scan", str(job), "--optax", "9.0"])
    assert capsys.readouterr().out.startswith("optax 9.0 is not a tested release: 0.1.2 to ")
    main(["scan", str(job), "--optax", TESTED[-1]])
    assert "not a tested release" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scan", "missing.py", "--optax", "0.2.3"], "there is no file or folder 'missing.py'"),
        (["scan", "--optax", "0.2.3"], "PATH"),
        (["scan", ".", "--optax", "newest"], "'newest' is no release of optax. Write each in"),
        (["scan", ".", "--optax", "0.2.x"], "'0.2.x' is no release of optax. Write each in full"),
        (["scan", ".", "--optax", "0.2.3", "0.2.8"], "unrecognized arguments: 0.2.8."),
        (["scan", ".", "--optax", "0.2.3", "-v"], "unrecognized arguments: -v."),
        (["scan", ".", "--optaxx", "1"], "Did you mean '--optax'?"),
    ],
)
def test_wrong_usage_is_3(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    try:
        code: Any = main(arguments)
    except SystemExit as error:
        code = error.code
    assert code == 3
    assert message in capsys.readouterr().err


def test_files_that_cannot_be_parsed_do_not_stop_the_rest(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    (job / "a.py").write_text("import optax\nprint optax\n", encoding="utf-8")
    (job / "b.py").write_bytes(b"import optax\n\0\n")
    (job / "c.py").write_bytes(b"import optax\nx = '\xff'\n")
    (job / "d.ipynb").write_text("optax", encoding="utf-8")
    (job / "e.ipynb").write_text('{"optax": 1}', encoding="utf-8")
    found = as_json(capsys, job)
    unparsed = [Path(line.partition(": ")[0]).name for line in found["unparsed"]]
    assert unparsed == ["a.py", "b.py", "c.py", "d.ipynb", "e.ipynb"]
    assert len(found["uses"]) == 1
    main(["scan", str(job), "--optax", "0.2.3"])
    assert f"{job / 'a.py'}: line 2: " in capsys.readouterr().out


def test_encodings_are_python_s(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    source = "# -*- coding: latin-1 -*-\nimport optax\nname = 'é'\noptax.contrib.prodigy()\n"
    (job / "latin.py").write_bytes(source.encode("latin-1"))
    source = "import optax\noptax.contrib.prodigy(r'\\d' '\\d')\n"
    (job / "bom.py").write_bytes(b"\xef\xbb\xbf" + source.encode())
    found = as_json(capsys, job / "latin.py", job / "bom.py")
    assert [use["place"] for use in found["uses"]] == ["4", "2"]
    assert not found["unparsed"]


def test_a_notebook_is_read_by_cells(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cells = [
        ("markdown", "import optax; optax.contrib.prodigy()"),
        ("code", "%matplotlib inline\n!pip install optax\nimport optax\noptax.adam?"),
        ("code", "%%bash\npip install optax"),
        ("code", ["%%time\n", "for i in range(3):\n", "    %timeit f()\n", "    !ls\n"]),
        ("code", "x = 1\nfiles = [!ls]\n"),
        ("code", ["tx = 3\n", "tx = optax.contrib.prodigy()"]),
    ]
    path = tmp_path / "report.ipynb"
    notebook = {"cells": [{"cell_type": kind, "source": source} for kind, source in cells]}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    found = as_json(capsys, tmp_path)
    assert [(use["place"], use["function"]) for use in found["uses"]] == [
        ("cell 5:2", "optax.contrib.prodigy")
    ]
    (problem,) = found["unparsed"]
    assert problem.startswith(f"{path}: cell 4: line 2: ")


USE = "optax.contrib.prodigy()"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (f"{USE}  # why?", 1),
        (f"x = (7\n  % 3)  # what is left?\n{USE}", 3),
        (f"x = (7\n  % 3)\n%matplotlib inline\n!ls  # why?\n{USE}  # why?", 5),
        (f"%time tx = {USE}", 1),
        (f"%timeit -n 10 -r3 -o {USE}", 1),
        (f"%prun -s cumulative -l 5 {USE}", 1),
        (f"for i in x:\n    %time tx = {USE}", 2),
        (f"took = %timeit -o {USE}", 1),
        (f"%%time\n{USE}", 2),
        (f"%%timeit -n 5 tx = {USE}\ntx", 1),
        (f"%%prun -s cumulative\n{USE}", 2),
        (f"%%capture out\n{USE}", 2),
        (f"%time tx = dict(\n    a={USE},\n)", 2),
        (f"!pip install a \\\n    b\n{USE}", 3),
        (f"files, more = !ls\n{USE}", 2),
        (f"?optax\noptax.adam??\n??optax.adam\n%matplotlib\n{USE}", 5),
        (f'!echo "it\'s"\n{USE}', 2),
        (f"%time\n{USE}", 2),
        (f"  %time x = 1\n  {USE}", 2),
    ],
)
def test_what_ipython_accepts_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str, line: int
) -> None:
    path = tmp_path / "a.ipynb"
    cells = [{"cell_type": "code", "source": text} for text in ("import optax", source)]
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    found = as_json(capsys, path)
    assert not found["unparsed"]
    assert [use["place"] for use in found["uses"]] == [f"cell 2:{line}"]


@pytest.mark.parametrize(
    ("call", "adds"),
    [
        ("optax.sgd(0.1, momentum=0.9)", True),
        ("optax.sgd(0.1, 0.9)", True),
        ("optax.sgd(0.1, m)", True),
        ("optax.sgd(0.1)", False),
        ("optax.sgd(learning_rate=0.1, nesterov=False)", False),
        ("optax.sgd(0.1, momentum=None)", False),
        ("optax.sgd(0.1, None)", False),
        ("optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9)", True),
        ("optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)", False),
        ("functools.partial(optax.sgd, momentum=0.9)(0.1)", True),
        ("functools.partial(optax.sgd, 0.1)()", False),
        # What may pass momentum.
        ("optax.sgd(*options)", True),
        ("optax.sgd(0.1, **options)", True),
        ("build(optax.sgd)", True),
        ("make = optax.sgd", True),
    ],
)
def test_an_argument_may_add_faults(
    call: str, adds: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import functools, optax\n{call}\n", encoding="utf-8")
    for release in TESTED:
        main(["scan", str(script), "--optax", release, "--dtype", "bfloat16"])
        printed = capsys.readouterr().out
        assert ("train.py:2: optax.sgd(momentum=): faults in bfloat16" in printed) == adds, printed


def test_momentum_is_listed_as_trace_is() -> None:
    for version in TESTED:
        release = Release(version, tested=True)
        found = faults_of("optax.sgd", release, ["momentum"])
        assert not [
            (patch, kind)
            for patch, kinds in faults_of("optax.trace", release).items()
            for kind in kinds
            if kind not in found.get(patch, ())
        ]


def test_a_file_without_optax_is_not_parsed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("print 1\n", encoding="utf-8")
    assert main(["scan", str(tmp_path), "--optax", "0.2.3"]) == 0
    assert capsys.readouterr().out.startswith("No file mentions optax.\n0 of 1 files use")
    (tmp_path / "fine.py").write_text("import optax\n", encoding="utf-8")
    assert main(["scan", str(tmp_path), "--optax", "0.2.3"]) == 0
    assert capsys.readouterr().out.startswith("0 of 2 files use")


def test_a_release_may_be_written_as_pip_and_git_do(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    main(["scan", str(job), "--json", "--optax", "v0.2.3, optax==0.2.8"])
    assert json.loads(capsys.readouterr().out)["releases"] == ["0.2.3", "0.2.8"]


def test_what_cannot_be_parsed_is_not_without_faults(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def code(*names: str) -> int:
        return main(["scan", "--optax", "0.2.3", *(str(tmp_path / name) for name in names)])

    (tmp_path / "broken.py").write_text("import optax\nprint optax\n")
    (tmp_path / "fine.py").write_text("import optax\n")
    (tmp_path / "uses.py").write_text(f"import optax\n{USE}\n")
    assert code("broken.py") == 3
    assert "No Python file or notebook could be read." in capsys.readouterr().out
    assert code("broken.py", "fine.py") == 2
    assert code("broken.py", "fine.py", "uses.py") == 1
    assert code("fine.py") == 0
    (tmp_path / "empty").mkdir()
    assert code("empty") == 3  # Perhaps a wrong path.


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of POSIX")
def test_a_named_pipe_is_not_opened(
    capsys: pytest.CaptureFixture[str], job: Path, command: Python
) -> None:
    os.mkfifo(job / "train" / "pipe.py")
    assert as_json(capsys, job)["files"] == 2
    found = as_json(capsys, job / "train" / "pipe.py")
    assert found["unparsed"][0].endswith("pipe.py: it is not a regular file")
    with (job / "train" / "opt.py").open() as stdin:  # But what the user names by intent is.
        done = command("scan", "/dev/stdin", "--optax", "0.2.3", stdin=stdin)
    assert done.stdout.startswith("/dev/stdin:3: optax.contrib.prodigy")


def test_generated_code_does_not_fill_the_memory(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    """Its tree would take 2 GB."""
    (job / "train" / "generated.py").write_text("import optax\nx = [" + "0," * 5_000_000 + "]\n")
    found = as_json(capsys, job)
    (problem,) = found["unparsed"]
    assert problem.endswith(": it has 10,000,020 characters of code; 2,000,000 are the limit")
    assert len(found["uses"]) == 1


def test_what_is_wrong_in_the_usual_dtype_comes_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("import optax\noptax.maybe_update\n")
    (tmp_path / "b.py").write_text(f"import optax\n{USE}\n# bfloat16, float32")
    (tmp_path / "c.py").write_text("# float16, bfloat16")  # No optax.

    def lines(*arguments: str) -> list[str]:
        main(["scan", str(tmp_path), "--optax", "0.2.3", *arguments])
        return capsys.readouterr().out.splitlines()

    first, b, a, summary = lines()
    start = "The first 1 of 2 uses have faults in float32, which most files use (--dtype float32)."
    assert first == start
    assert (f"{tmp_path}/b.py" in b, f"{tmp_path}/a.py" in a) == (True, True)
    assert summary.startswith("2 of 3 files")
    assert [f"{tmp_path}/b.py:2" in line for line in lines("--dtype", "float32")] == [True, False]
    b, a, summary = lines("--dtype", "float32,bfloat16")
    assert "optax.maybe_update: faults in bfloat16, gradients wider than params on 0.2.3" in a
    for number in range(2):
        (tmp_path / f"d{number}.py").write_text("import optax\n# bfloat16")
    a, b, summary = lines()
    assert f"{tmp_path}/a.py" in a  # All uses have faults in bfloat16.
    with pytest.raises(SystemExit) as caught:
        lines("--dtype", "bflot16")
    assert caught.value.code == 3
    assert "Did you mean 'bfloat16'?" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_selects_kinds_of_the_table(dtype: str) -> None:
    kinds = results.kinds_of([dtype])
    assert kinds <= set(KINDS)
    assert "any dtype" in kinds
    assert len(kinds) > 1 or dtype in ("float32", "bool")


def test_only_the_user_s_files_are_read(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    for folder in (".git", "venv", "node_modules", "a/site-packages", "b/__pycache__"):
        (job / folder).mkdir(parents=True)
        (job / folder / "other.py").write_text("import optax\noptax.contrib.prodigy()\n")
    (job / "venv" / "pyvenv.cfg").touch()
    (job / "train" / "again").symlink_to(job, target_is_directory=True)
    assert as_json(capsys, job)["files"] == 2
    assert as_json(capsys, job / "venv" / "other.py", job / "train")["files"] == 3
    assert as_json(capsys, job / "train", job / "train" / "opt.py")["files"] == 2


def test_a_terminal_shows_that_it_runs(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=is_terminal: shown)
        main(["scan", str(job), "--json"])
        done = capsys.readouterr()
        assert done.err == "Looking for functions with faults ...\n" * is_terminal
        assert json.loads(done.out)["files"] == 2


def test_a_function_is_known_wherever_a_release_has_it() -> None:
    release = Release("0.2.3", tested=True)
    found = faults_of("optax.adam", release)
    assert found
    assert faults_of("optax._src.alias.adam", release) == found
    assert not faults_of("optax.l2_loss", release)


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2].joinpath("docs", "control.md").read_text(encoding="utf-8")
    shown = page.partition("optax_dtypefix scan ")[2].partition("```")[0].splitlines()
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for number in range(208):
        (jobs / f"{number}.py").touch()
    for line in shown[2:4]:
        name, number, function = line.replace(" ", "").split(":")[:3]
        blank = "\n" * (int(number) - 2)
        (tmp_path / name).write_text(f"import optax\n{blank}{function}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    main(["scan", *shown[0].split()])
    assert capsys.readouterr().out.splitlines() == shown[1:]
