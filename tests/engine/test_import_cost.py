"""``import optax_dtypefix`` is quiet, small, and strict about the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from inaprocess import run, start

if TYPE_CHECKING:
    from pathlib import Path


def test_it_imports_next_to_nothing_and_prints_nothing(tmp_path: Path) -> None:
    script = """
        import wrapt  # It brings 140 modules of the standard library: not counted.
        import logging
        before = set(sys.modules)
        import optax_dtypefix
        new = set(sys.modules) - before
        heavy = {"jax", "numpy", "optax", "packaging", "difflib", "json"} & set(sys.modules)
        assert not heavy, heavy
        print(len([name for name in new if not name.startswith("optax_dtypefix")]))
        """
    done = start(tmp_path, script, "-W", "error")
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) <= 5


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OPTAX_DTYPEFIX", "no", "OPTAX_DTYPEFIX='no' is not valid. Set it to 'on' or 'off'."),
        ("OPTAX_DTYPEFIX_DISABLE", "prodigy,", "OPTAX_DTYPEFIX_DISABLE='prodigy,' has an empty"),
    ],
)
def test_a_malformed_variable_stops_the_program(
    tmp_path: Path, variable: str, value: str, message: str
) -> None:
    done = start(tmp_path, "import optax_dtypefix", **{variable: value})
    assert done.returncode == 1
    assert f"OptaxDtypeFixError: {message}" in done.stderr.splitlines()[-1]


def test_an_unknown_id_is_told_but_breaks_nothing_under_warnings_as_errors(tmp_path: Path) -> None:
    script = "import optax_dtypefix\nprint('on')"
    unknown = {"OPTAX_DTYPEFIX_DISABLE": "prodgy"}
    for options in ((), ("-W", "error")):
        done = start(tmp_path, script, *options, **unknown)
        assert done.stdout == "on\n", done.stderr
        assert "names 'prodgy', which is no patch: did you mean 'prodigy'?" in done.stderr
    strict = start(tmp_path, script, **unknown, OPTAX_DTYPEFIX_STRICT="1")
    assert strict.returncode == 1
    assert "did you mean 'prodigy'?" in strict.stderr


def test_a_warning_names_the_line_that_imports(tmp_path: Path) -> None:
    done = start(tmp_path, "import optax_dtypefix", OPTAX_DTYPEFIX_ONLY="prodgy")
    assert "script.py:" in done.stderr.splitlines()[0]
    assert "OptaxDtypeFixWarning" in done.stderr


def test_it_may_be_imported_twice_and_removed(tmp_path: Path) -> None:
    script = """
        import optax_dtypefix
        import optax_dtypefix as again
        assert again is optax_dtypefix
        print(sorted(n for n in vars(optax_dtypefix) if n.islower() and not n.startswith("_")))
        """
    printed = run(tmp_path, script)
    for name in ("apply", "disabled", "is_applied", "original", "revert", "status"):
        assert f"'{name}'" in printed
