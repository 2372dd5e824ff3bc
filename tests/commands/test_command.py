from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

import optax_dtypefix
from optax_dtypefix._commands.colour import painter
from optax_dtypefix._commands.main import main
from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches import IDS, load
from optax_dtypefix.patches.releases import TESTED
from support.processes import Python
from support.thorough import one_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_console_script_is_the_same_command() -> None:
    scripts = importlib.metadata.distribution("optax-dtypefix").entry_points
    (script,) = [entry for entry in scripts if entry.name == "optax-dtypefix"]
    assert script.load() is main


def test_version_prints_all_versions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"optax-dtypefix {optax_dtypefix.__version__} (optax ")
    assert f"jax {importlib.metadata.version('jax')}" in printed


def test_version_imports_neither_jax_nor_optax(python: Python) -> None:
    for start in (("-m", "optax_dtypefix"), ("-c", CONSOLE_SCRIPT)):
        run = python("-X", "importtime", *start, "--version")
        assert run.returncode == 0
        assert run.stdout.startswith(f"optax-dtypefix {optax_dtypefix.__version__} (")
        imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
        assert "optax_dtypefix" in imported
        assert not imported & {"jax", "jaxlib", "optax"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["status", "-h"], ["doctor", "-h"], ["run", "-h"]]
)
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 0
    assert "usage: optax-dtypefix" in capsys.readouterr().out


def test_without_a_command_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([])
    assert exit_.value.code == 2
    assert "examples:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctr"], "invalid choice: 'doctr' "),
        (["doctr"], "Did you mean 'doctor'?"),
        (["sacn", "."], "Did you mean 'scan'?"),
        (["xyz"], "See `optax-dtypefix --help`."),
        (["help"], "Did you mean '--help'?"),
        (["-V"], "the following arguments are required: COMMAND"),
        (["train.py", "--lr", "1"], "Did you mean 'run train.py'?"),
        (["multi_steps"], "Did you mean 'doctor multi_steps'?"),
        (["--json", "status"], "unrecognized arguments: --json. See `optax-dtypefix --help`."),
        (["status", "multi_steps"], "Did you mean 'doctor multi_steps'?"),
        (["activate", "more"], "optax-dtypefix activate: error: unrecognized arguments: more."),
        (["status", "--jsn"], "unrecognized arguments: --jsn. Did you mean '--json'?"),
        (["doctor", "MULTI_STEPS"], "Unknown patch 'MULTI_STEPS'. Did you mean 'multi_steps'?"),
        (["doctor", "mutli_steps"], "Unknown patch 'mutli_steps'. Did you mean 'multi_steps'?"),
        (["doctor", "fromage.schedul"], "Did you mean 'fromage.schedule'?"),
        (
            ["doctor", "nosuch"],
            "patch 'nosuch'. To list them, run `optax-dtypefix status`.",
        ),
        (["doctor", "sums.xyz"], "'sums.xyz'. To list them, run `optax-dtypefix doctor sums`."),
        (["run", "-I", "train.py"], "come first: `python -I -m optax_dtypefix run ...`"),
        (["run", "-v", "-u", "train.py"], "come first: `python -u -m optax_dtypefix run ...`"),
        (["run", "-Wd", "train.py"], "unrecognized arguments: -Wd. Options of Python come first: "),
        (["run", "--report", "run.json"], "are required: SCRIPT, or -m MODULE"),
        *((wrong, "usage: optax-dtypefix") for wrong in (["run"], ["run", "-x"], ["run", "-m"])),
        (["status", "more"], "usage: optax-dtypefix"),
        (["doctor", "optax.adam"], "Patches of adam: learning_rate, "),
    ],
)
def test_a_typo_or_a_plain_mistake_is_answered(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_help_names_a_fault_of_every_release(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    (name,) = re.findall(r"a fault: (\S+)", capsys.readouterr().out)
    patch, _, fault = name.partition(".")
    (releases,) = [each.releases for each in load(patch).faults if each.id == fault]
    assert all(Release(version).within(releases) for version in TESTED)


def test_status_lists_the_applied_patches(command: Python) -> None:
    run = command("status", OPTAX_DTYPEFIX_ONLY="multi_steps", FORCE_COLOR="1")
    assert (run.returncode, run.stderr) == (0, "")
    assert f": 1 patch on optax {importlib.metadata.version('optax')}, " in run.stdout
    *lines, _, hint = run.stdout.splitlines()
    assert len(lines) == 4 + len(IDS)
    assert hint == "`status -v` shows each reason in full."
    (line,) = [line for line in lines if line.startswith("multi_steps")]
    assert line.split()[1] == "\033[32mapplied\033[0m"
    assert all(len(re.sub(r"\033\[\d+m", "", line)) <= 80 for line in lines)
    assert "zero_nans" in run.stdout
    assert "not in OPTAX_DTYPEFIX_ONLY" in run.stdout


@pytest.mark.parametrize(
    ("terminal", "variables", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "0"}, False),
    ],
)
def test_colour_where_the_terminal_wants_it(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, variables: dict[str, str], coloured: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert painter()("applied   ") == ("\033[32mapplied\033[0m   " if coloured else "applied   ")


@pytest.mark.parametrize(
    ("cell", "colour"),
    [
        ("failed", "31"),
        ("pending ", "33"),
        ("6/6 fixed", "32"),
        ("5/6 fixed; disabled: a", "33"),
        ("5/6 fixed; still fails: a", "31"),
        ("multi_steps", None),
        ("optax 0.2.5 has: failed", None),
        ("-------", None),
    ],
)
def test_only_states_verdicts_and_counts_are_coloured(
    monkeypatch: pytest.MonkeyPatch, cell: str, colour: str | None
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    found = re.match("\033\\[(\\d+)m", painter()(cell))
    assert (found and found[1]) == colour


BROKEN = """
    import wrapt

    @wrapt.when_imported("optax_dtypefix.patches")
    def break_it(patches):
        def load(patch_id):
            raise AttributeError(patch_id)

        patches.load = load
"""


@pytest.mark.parametrize("strict", one_of(2, ["0", "1"]))
def test_status_exits_with_1_when_a_patch_failed(command: Python, strict: str) -> None:
    run = command(
        "status",
        "--json",
        PYTHONPATH=command.at_start(BROKEN),
        OPTAX_DTYPEFIX_ONLY="multi_steps",
        OPTAX_DTYPEFIX_STRICT=strict,
    )
    assert run.returncode == 1
    report = json.loads(run.stdout)
    assert report["optax_version"] == importlib.metadata.version("optax")
    assert report["jax_version"] == importlib.metadata.version("jax")
    (failed,) = [patch for patch in report["patches"] if patch["state"] == "failed"]
    assert failed["id"] == "multi_steps"
    assert "AttributeError" in failed["reason"]
    assert "Failed: multi_steps" in run.stderr
    assert ("OPTAX_DTYPEFIX_STRICT=1" in run.stderr) == (strict == "1")
    assert "Traceback" not in run.stderr


ABSENT = """
    import importlib.machinery

    find_spec = importlib.machinery.PathFinder.find_spec

    def without_optax(name, path=None, target=None):
        return None if name == "optax" else find_spec(name, path, target)

    importlib.machinery.PathFinder.find_spec = without_optax
"""


@pytest.mark.parametrize("name", ["status", "doctor"])
def test_a_missing_optax_is_reported(command: Python, name: str) -> None:
    run = command(name, PYTHONPATH=command.at_start(ABSENT))
    assert (run.returncode, run.stdout) == (1, "")
    assert "optax cannot be imported: it is not installed" in run.stderr
    assert "-m pip install optax`." in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("name", ["status", "doctor"])
def test_a_broken_optax_is_reported(command: Python, tmp_path: Path, name: str) -> None:
    folder = command.at_start("")
    (tmp_path / "site" / "optax").mkdir()
    (tmp_path / "site" / "optax" / "__init__.py").write_text(
        "raise ImportError('this optax wants another jax')"
    )
    run = command(name, PYTHONPATH=folder)
    assert (run.returncode, run.stdout) == (1, "")
    assert "optax-dtypefix: optax cannot be imported" in run.stderr
    assert "ImportError: this optax wants another jax" in run.stderr


def test_an_invalid_variable_is_one_line(python: Python) -> None:
    for start, name, code in (
        (("-m", "optax_dtypefix"), "status", 2),
        (("-c", CONSOLE_SCRIPT), "status", 2),
        (("-m", "optax_dtypefix"), "check", 3),  # Here 2 is a verdict.
    ):
        run = python(*start, name, OPTAX_DTYPEFIX="no")
        assert run.stderr == (
            "optax-dtypefix: OPTAX_DTYPEFIX='no' is not valid. Set it to 'on' or 'off'.\n"
        )
        assert (run.returncode, run.stdout) == (code, "")


CONSOLE_SCRIPT = """
import sys
sys.argv[0] = "/somewhere/bin/optax-dtypefix"
from optax_dtypefix._commands.main import main
sys.exit(main())
"""


@pytest.mark.thorough
def test_closed_streams(python: Python) -> None:
    """``>&-`` and ``2>&-``: Python then has no stream at all."""
    closed = (
        "import os, sys; os.close({}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    status = ("-m", "optax_dtypefix", "status")
    run = python("-c", closed.format(1), *status)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "optax-dtypefix: stdout is closed. Redirect stdout to a file.\n"
    run = python("-c", closed.format(2), *status, OPTAX_DTYPEFIX_ONLY="fromage")
    assert (run.returncode, run.stderr) == (0, "")
    assert "fromage" in run.stdout
    run = python("-c", closed.format(2), *status, OPTAX_DTYPEFIX="no")
    assert (run.returncode, run.stdout) == (2, "")  # Whoever reads stdout expects no errors there.


@pytest.mark.thorough
def test_the_id_of_an_older_version_is_no_error(
    command: Python, python: Python, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"OPTAX_DTYPEFIX_ENABLE": "every_transform", "OPTAX_DTYPEFIX_STRICT": "1"}
    run = command("status", **variables)
    assert run.returncode == 0
    assert run.stderr.count("'every_transform' in OPTAX_DTYPEFIX_ENABLE does nothing since") == 1
    assert "every_transform" not in run.stdout
    run = python("-c", "import optax_dtypefix as o; print(o.is_applied('float32_averages'))")
    assert run.stdout == "False\n"
    assert "float32_moments keeps averages and sums in float32 too" in run.stderr
    for name in ("every_transform", "every_transform.own_transformation"):
        assert main(["doctor", name]) == 0
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("optax-dtypefix: Patch 'every_transform' does nothing since 2.0.")


@pytest.mark.parametrize("arguments", [["doctor", "multi_step"], ["status", "--jsn"], []])
def test_with_stderr_closed_errors_are_not_in_the_output(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = exit_.code  # type: ignore[assignment]
    assert (code, capsys.readouterr().out) == (2, "")


def test_without_a_temporary_folder_doctor_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    assert main(["doctor", "fromage"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert "optax-dtypefix: [Errno 2] No such file or directory: '/no/such" in printed.err
