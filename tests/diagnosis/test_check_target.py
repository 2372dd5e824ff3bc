"""The target of the ``check`` command: which optimizer a user names, and what is wrong with it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from optax_dtypefix._commands.main import main
from optax_dtypefix._diagnosis.check_command import results
from optax_dtypefix._diagnosis.check_command.optimizer import (
    OptimizerError,
    OptimizerName,
    load,
    parse_name,
)
from optax_dtypefix._diagnosis.check_command.source import refuse_missing
from support.processes import write_script

if TYPE_CHECKING:
    from pathlib import Path


def test_a_transformation_or_a_factory_is_found(script: Path) -> None:
    assert script.exists()
    for text in ("train.py:tx", "train:tx", "train.py:state.tx", "train.py:inject"):
        tx = load(parse_name(text))()
        assert callable(tx.init), text
        assert callable(tx.update), text


def test_a_factory_builds_anew(script: Path) -> None:
    build = load(OptimizerName(str(script), "inject"))
    assert build() is not build()


def test_a_script_is_imported_from_its_own_folder(tmp_path: Path, script: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    write_script(folder, "from helper import tx", "entry.py")
    write_script(folder, "import optax; tx = optax.sgd(0.1)", "helper.py")
    assert script.exists()
    load(parse_name("scripts/entry.py:tx"))
    assert sys.modules["entry"].tx is sys.modules["helper"].tx
    assert sys.argv == ["scripts/entry.py"]


def test_a_file_does_not_replace_a_module(tmp_path: Path, script: Path) -> None:
    write_script(tmp_path, "import optax\ntx = optax.sgd(0.1)", "json.py")
    assert script.exists()
    load(parse_name("json.py:tx"))
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.py:injct", "train.py has no 'injct'. Did you mean 'inject'?"),
        ("train.py:state.foo", "train.py:state has no 'foo'."),
        ("train.py:scheduled", "train.py:scheduled needs arguments: steps, peak. Name a function"),
        ("train.py:Missing.tx", "train.py has no 'Missing'. It has: inject, "),
        ("train.py:number", "train.py:number has type int, not a transformation: it has no init"),
        ("train.py:state", "Did you mean 'train.py:state.tx'?"),
        ("train.py:schedule", "train.py:schedule returns float, not a transformation"),
        ("optax:GradientTransformation", "needs arguments: init, update."),
        ("no_such_package.train:tx", "there is no module 'no_such_package'"),
        ("wrong.py:tx", "wrong.py cannot be imported: ValueError: no data (line 3)"),
        ("missing.py:tx", "missing.py cannot be imported: ModuleNotFoundError: No module named"),
        ("exits.py:tx", "exits.py cannot be imported: it exits with 7. Move the code"),
        (
            "options.py:make",
            "options.py:make cannot be built: it exits with 2. Name a function",
        ),
        ("relative.py:tx", "It is part of a package: write MODULE:NAME"),
    ],
)
def test_a_target_that_cannot_be_used_is_explained(script: Path, text: str, message: str) -> None:
    write_script(script.parent, "\nx = 1\nraise ValueError('no data')", "wrong.py")
    write_script(script.parent, "import no_such_package", "missing.py")
    write_script(script.parent, "import sys; sys.exit(7)", "exits.py")
    write_script(script.parent, "def make(): raise SystemExit(2)", "options.py")
    write_script(script.parent, "from . import other", "relative.py")
    with pytest.raises(OptimizerError) as error:
        load(parse_name(text))()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


SHAPED = """
    import optax
    from helper import shaped as imported
    try:
        pass
    except ValueError as problem:
        pass
    if True:
        inside = optax.sgd(0.1)
    for looped in (inside,):
        (walrus := looped)
    def outer():
        global made
        made = looped
    outer()
"""


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shaped.py:insde", "shaped.py has no 'insde'. Did you mean 'inside'?"),
        ("shaped:insde.tx", "shaped has no 'insde'. Did you mean 'inside'?"),
        ("shaped.py:xyz", "shaped.py has no 'xyz'. It has: "),
        ("package.within:otuer", "package.within has no 'otuer'. Did you mean 'outer'?"),
        ("package:xyz", "package has no 'xyz'."),
        ("shapde:inside", "there is no module 'shapde'. Did you mean 'shaped'?"),
        ("no_such_package.train:tx", "there is no module 'no_such_package'."),
    ],
)
def test_a_misspelt_name_starts_nothing(
    target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(tmp_path, SHAPED, "shaped.py")
    (tmp_path / "package").mkdir()
    for name in ("__init__.py", "within.py"):
        write_script(tmp_path / "package", SHAPED, name)
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    with pytest.raises(OptimizerError) as error:
        refuse_missing(parse_name(target))
    assert str(error.value).startswith(message)
    assert sys.path == before
    assert not {"shaped", "package"} & {*sys.modules}


def test_check_refuses_a_misspelt_name_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_script(tmp_path, SHAPED, "shaped.py")
    monkeypatch.setattr(results, "run_workers", None)
    assert main(["check", f"{tmp_path / 'shaped.py'}:insde"]) == 3
    assert "Did you mean 'inside'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["inside", "looped", "walrus", "made", "outer", "imported", "optax.sgd", "problem", "__name__"],
)
def test_a_name_that_may_be_bound_is_left_to_the_import(name: str, tmp_path: Path) -> None:
    write_script(tmp_path, SHAPED, "shaped.py")
    refuse_missing(parse_name(f"{tmp_path / 'shaped.py'}:{name}"))


@pytest.mark.parametrize(
    "source",
    [
        "from optax import *",
        "globals()['x'] = 1",
        "def __getattr__(name): return 1",
        "import sys; setattr(sys.modules[__name__], 'x', 1)",
        "exec('x = 1')",
        "is it Python",
    ],
)
def test_a_source_that_cannot_be_read_is_left_to_the_import(source: str, tmp_path: Path) -> None:
    write_script(tmp_path, source, "dynamic.py")
    refuse_missing(parse_name(f"{tmp_path / 'dynamic.py'}:x"))


@pytest.mark.parametrize("target", ["builtins:x", "math:x", "package:within", "package.other:x"])
def test_a_module_without_source_is_left_to_the_import(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    write_script(tmp_path / "package", "from .within import y", "__init__.py")
    write_script(tmp_path / "package", "y = 1", "within.py")
    monkeypatch.chdir(tmp_path)
    refuse_missing(parse_name(target))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: TARGET"),
        (["train.py"], "Write FILE.py:NAME or MODULE:NAME, such as train.py:make_optimizer"),
        ([":tx"], "does not name an optimizer"),
        (["trian.py:tx"], "there is no file 'trian.py'. Did you mean 'train.py'?"),
        (["train.py::tx"], "such as train.py:tx"),
        (["make"], "such as train.py:make"),
        (["package.train.make"], "such as package.train:make"),
        (["optax.adam"], "such as optax:adam"),
        (["train.ipynb:tx"], "'train.ipynb' is a notebook."),
        ([".:tx"], "'.' is neither a Python file nor a module."),
        (["train.py:tx", "bf16"], "arguments: bf16. See `optax-dtypefix check --help`."),
        (["train"], "such as train:make_optimizer"),
        (["train.py:tx", "--dtype", "bf61"], "unknown dtype 'bf61'. Did you mean 'bfloat16'?"),
        (["train.py:tx", "--params", "w=float32[2", "-v"], "cannot read 'w=float32[2'. Write NAME"),
        (["train.py:tx", "--params", "w=int8[]", "--dtype", "int8"], "not allowed with argument"),
        (["train.py:tx", "--dtypes", "int8"], "--dtypes int8. Did you mean '--dtype'?"),
        (["--dtypes", "int8", "train.py:tx"], "'int8' does not name an optimizer"),
        (["train.py:tx", "--dtypes=int8"], "--dtypes=int8. Did you mean '--dtype'?"),
        (["train.py:tx", "--gpu"], "unrecognized arguments: --gpu."),
    ],
)
def test_wrong_usage_exits_with_3(
    arguments: list[str], message: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.exists()
    with pytest.raises(SystemExit) as exit_:
        main(["check", *arguments])
    assert exit_.value.code == 3
    assert message in capsys.readouterr().err


def test_help_has_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["check", "--help"])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert "3  nothing was checked" in printed
    assert "if a problem stays on patched optax:" in printed
