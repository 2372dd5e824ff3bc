"""The command line: its commands, options and help."""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import re
import sys
from typing import TYPE_CHECKING

from .. import __version__
from .._diagnosis.check_command.optimizer import parse_name
from .._diagnosis.check_command.params import USUAL, parse_dtypes, parse_own
from .._diagnosis.scan.functions import faults_of
from .._engine.release import Release, version_of
from .._errors import CHECK_FAILED
from .._text import closest, suggest
from ..patches import IDS, load
from ..patches.catalogue import REMOVED
from ..patches.releases import TESTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_RUN_OPTIONS = {"--report": 2, "--require": 2, "-v": 1, "--verbose": 1}
"""The number of arguments that each takes, with itself."""

_OF_NO_COMMAND = ("-h", "--help", "--version")
_VERSION = r"\d+(\.\d+)*((a|b|rc|\.?dev|\.?post)\d*)*(\+\w+([.-]\w+)*)?"
"""A release, as in 0.2.3, 0.2.8.dev0 or 0.2.8+fork."""

_DESCRIPTION = """\
Make the installed optax dtype-preserving. In a program, `import optax_dtypefix` is enough. This
command shows which patches are applied, tests them, and patches programs that you cannot change.
"""

_EPILOG = """\
examples:
  optax-dtypefix status                     show which patches are applied here, and why
  optax-dtypefix doctor                     reproduce each fault on stock and on patched optax
  optax-dtypefix doctor multi_steps         show every detail of the faults of one patch
  optax-dtypefix check train.py:make_optimizer
                                            is my optimizer affected, and what fixes it?
  optax-dtypefix scan src/ --optax 0.2.3,0.2.8
                                            which files use functions with faults?
  optax-dtypefix run train.py --lr 0.1      run an unmodified script under the shim
  optax-dtypefix run -m my.training --json  run an unmodified module with its own options
  optax-dtypefix run --report run.json train.py   write what was applied, and what it did
  optax-dtypefix run --require run.json train.py  fail unless the same is applied again
  optax-dtypefix activate                   patch optax in every Python of this environment
  optax-dtypefix activate --strict          and let none of them import optax unpatched

environment:
  OPTAX_DTYPEFIX=off                        switch the whole shim off
  OPTAX_DTYPEFIX_DISABLE=multi_steps,...    switch patches off; `all` switches all off
  OPTAX_DTYPEFIX_ONLY=multi_steps,...       apply only these patches
  OPTAX_DTYPEFIX_ENABLE=float32_moments,... apply these opt-in patches too
  OPTAX_DTYPEFIX_STRICT=1                   raise an error if a patch cannot be applied
  OPTAX_DTYPEFIX_LOG=info                   log what is applied in one line; `debug` logs why
  OPTAX_DTYPEFIX_REPORT=run.json            write what was applied, and what it did
  OPTAX_DTYPEFIX_REQUIRE=run.json           fail unless the same is applied again
"""

_STATUS = """\
Import optax under the shim, and report for each patch whether it was applied, and why. Exit with 1
if a patch failed. To require the same patches later: `status --json > FILE`, `run --require FILE`.
"""

_DOCTOR = """\
Reproduce each fault of the installed optax on the stock and on the patched functions, in separate
processes. Show one line a patch; with PATCH, every detail of its faults, or of one of them. Run on
the CPU unless JAX_PLATFORMS is set. Exit with 1 if patched optax still has a fault, or if stock
optax does not show a fault that is listed for this release.
"""

_CHECK = """\
Check your own optimizer on stock and on patched optax, in separate processes: dtypes, values in
half precision, and which patches it needs. TARGET is a transformation, or a function that takes no
arguments and returns one. The file or module is imported, not run as __main__.
"""

_CHECK_EPILOG = """\
exit code:
  0  stock optax is fine
  1  the optimizer is affected, and the patches fix it
  2  patched optax still has a problem
  3  nothing was checked: wrong usage, or no such optimizer

if a problem stays on patched optax:
  state, updates, scan, cond  wrap your transformation: optax_dtypefix.preserve_dtypes(tx)
  float64, int64              give the constants in your code the dtypes of the leaves
  off, stalls, not finite     keep these params in float32, or use optax_dtypefix.master_weights(tx)
  apply_updates               keep a number that is alone in float32, or use master_weights(tx)
  an error                    the message has its line; or give --params like your own
  broken by the patches       report it; until then, try OPTAX_DTYPEFIX_DISABLE=PATCH

examples:
  optax-dtypefix check train.py:make_optimizer
  optax-dtypefix check my.package.training:tx --dtype bfloat16
  optax-dtypefix check train.py:tx --params "w=bfloat16[128,256],layer.b=float32[16]"
"""

_SCAN = """\
List the functions with faults that Python files and notebooks use, and in which dtypes or modes.
PATH is a file or a folder. Nothing is imported, so neither jax nor optax has to be installed.
Whether a fault matters depends on your dtypes: `check` tries one optimizer.
"""

_SCAN_EPILOG = """\
exit code:
  0  no function with faults is used
  1  functions with faults are used
  2  none is used in what was parsed; some files or cells could not be parsed
  3  nothing was scanned: wrong usage, no such file, or no file could be parsed

examples:
  optax-dtypefix scan .
  optax-dtypefix scan . --dtype float32         only what is wrong for float32 params
  optax-dtypefix scan jobs/ notebooks/report.ipynb --optax 0.2.3 --json
  optax-dtypefix scan . --optax 0.2.3,0.2.8     what would an upgrade leave?
"""

_RUN = """\
Run an unmodified script or module under the shim, as `python SCRIPT ...` or `python -m MODULE ...`
does. `run` puts a folder first on PYTHONPATH; from there Python imports the shim when it starts.
Processes that the program starts inherit PYTHONPATH and are patched too, unless they start with
-I, -E or -S. SCRIPT may also be a folder or a zip archive, or - for stdin.
All arguments after SCRIPT or MODULE go to the program.

With --report, write to FILE which patches were applied and what each patch did: when optax is
imported, and again at exit. In FILE, %p stands for the process id and %h for the host; without
them, the last process that imported optax writes the file. With --require, `import optax` raises
an error if optax, jax or the patches differ from those in FILE. The error lists what differs.
"""

_ACTIVATE = """\
Write a .pth file, and a .py file that it imports, into the site-packages of this Python. From then
on, every Python of this environment imports optax_dtypefix when it starts: launchers, workers,
subprocesses. `python -S` does not read them. The OPTAX_DTYPEFIX* variables still apply.

With --strict, OPTAX_DTYPEFIX_STRICT is 1 unless it is set: `import optax` raises an error if a
patch cannot be applied, or if optax_dtypefix is broken or gone. OPTAX_DTYPEFIX=off is still stock
optax; OPTAX_DTYPEFIX_REQUIRE also refuses that.
"""

_DEACTIVATE = """\
Remove the files that `activate` wrote.
"""


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    """Read our arguments, and return those of the program under ``run`` as they are.

    Raises:
      SystemExit: wrong usage, or help was asked for; the message is printed.
    """
    ours, theirs = _split(arguments)
    parser, commands = _parsers()
    if not ours:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    try:
        if ours[0] in commands:
            _refuse_unknown_options(commands[ours[0]], ours[1:])
        if ours[0] == "run":
            _refuse_options_of_python(commands["run"], ours[-1])
        elif ours[0] not in commands and not any(o.startswith(ours[0]) for o in _OF_NO_COMMAND):
            parser.error(_not_a_command(ours, commands))
        options, unknown = parser.parse_known_args(ours)
        if unknown:
            _refuse(unknown, commands[options.command], ours)
        return options, theirs
    except SystemExit as exit_:
        if ours[0] in ("check", "scan") and exit_.code:  # argparse means 2, a verdict of check.
            exit_.code = CHECK_FAILED
        raise


def _not_a_command(ours: Sequence[str], commands: Iterable[str]) -> str:
    """Say that the first word is no command, and which one was probably meant."""
    first = ours[0]
    if first.lower() in ("help", "version", "-v"):
        meant = "--help" if first.lower() == "help" else "--version"
    elif first.startswith("-"):
        command = next((word for word in ours if word in commands), "run" if first == "-m" else "")
        match = closest(first, _OF_NO_COMMAND, cutoff=0.5)
        meant = f"{command} {first}" if command else match or f"status {first}"
    elif first.partition(".")[0] in IDS:
        meant = f"doctor {first}"
    elif first.endswith(".py"):
        meant = f"run {first}"
    else:
        return f"{first!r} is no command. {suggest(first, list(commands))}"
    return f"{first!r} is no command. Did you mean {meant!r}?"


def _refuse(unknown: Sequence[str], command: argparse.ArgumentParser, ours: Sequence[str]) -> None:
    """Say what is wrong with arguments that a command does not take."""
    first = unknown[0]
    if first.startswith("-"):
        command.error(f"there is no option {first}. {_see_help(command)}")
    if first in IDS:
        command.error(
            f"unexpected argument {first!r}. Did you mean `optax-dtypefix doctor {first}`?"
        )
    commas = any("," in str(a.metavar) and {*a.option_strings} & {*ours} for a in command._actions)
    advice = "Separate several values of an option by commas." if commas else _see_help(command)
    command.error(f"unexpected argument {first!r}. {advice}")


def _refuse_unknown_options(command: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Name the nearest option: argparse would take the value of an unknown one for TARGET."""
    known = [option[2:] for option in command._option_string_actions if option.startswith("--")]
    for argument in itertools.takewhile(lambda argument: argument != "--", arguments):
        option = argument.partition("=")[0]
        if option.startswith("--") and not any(name.startswith(option[2:]) for name in known):
            match = closest(option[2:], known, cutoff=0.5)
            advice = f"Did you mean --{match}?" if match else _see_help(command)
            command.error(f"there is no option {option}. {advice}")


def _refuse_options_of_python(run: argparse.ArgumentParser, last: str) -> None:
    """Say what to do about an option of Python in place of the program, as in ``run -I train.py``.

    Args:
      run: the parser of ``run``.
      last: the last argument before those of the program.
    """
    known = run._option_string_actions
    if not re.fullmatch("-[A-Za-z]+", last) or last[:2] in known:
        return
    if {*"IES"} & {*last}:
        run.error(
            f"under {last}, Python does not read the folder that imports the shim. Leave {last} "
            f"out. Under -I and -E, `python -m optax_dtypefix activate` patches programs."
        )
    run.error(
        f"{last} is no option of run. Options of Python come first: `python {last} -m "
        f"optax_dtypefix run ...`"
    )


def _see_help(command: argparse.ArgumentParser) -> str:
    return f"See `{command.prog} --help`."


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split our arguments from those of the program under ``run``: argparse must not see them."""
    if arguments[:1] != ["run"]:
        return arguments, ()
    ours = 1
    while arguments[ours : ours + 1] and arguments[ours].partition("=")[0] in _RUN_OPTIONS:
        ours += 1 if "=" in arguments[ours] else _RUN_OPTIONS[arguments[ours]]
    ours += 2 if arguments[ours : ours + 1] in (["-m"], ["--"]) else 1
    return arguments[:ours], arguments[ours:]


def _parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    parser = argparse.ArgumentParser(
        "optax-dtypefix",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    versions = f"optax {version_of('optax')}, jax {version_of('jax')}"
    parser.add_argument(
        "--version",
        action="version",
        version=f"%(prog)s {__version__} ({versions}, Python {platform.python_version()})",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, summary: str, description: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    status = command("status", "show which patches are applied here, and why", _STATUS)
    doctor = command("doctor", "reproduce each fault on stock and on patched optax", _DOCTOR)
    check = command("check", "check your own optimizer, and find the patches it needs", _CHECK)
    scan = command("scan", "list the functions with faults that files use", _SCAN)
    activate = command("activate", "patch optax in every Python of this environment", _ACTIVATE)
    activate.add_argument(
        "--strict", action="store_true", help="make `import optax` an error if it stays stock"
    )
    command("deactivate", "undo `activate`", _DEACTIVATE)
    for one, more in (
        (status, "reasons in full"),
        (doctor, "one line a fault, with its messages"),
        (check, "every problem, not only the first"),
    ):
        one.add_argument("--json", action="store_true", help="print everything as JSON")
        one.add_argument("-v", "--verbose", action="store_true", help=f"show {more}")
    doctor.add_argument(
        "patches",
        metavar="PATCH",
        nargs="*",
        type=_patch_or_fault,
        help="such as multi_steps, or a fault: multi_steps.inner_drift",
    )
    _add_params(check)
    scan.epilog = _SCAN_EPILOG
    scan.add_argument("paths", metavar="PATH", nargs="+", help="a file or a folder")
    scan.add_argument(
        "--optax",
        metavar="VERSION[,VERSION]",
        type=_releases,
        dest="releases",
        help="releases of optax; the installed one by default",
    )
    scan.add_argument(
        "--dtype",
        metavar="DTYPE,...",
        dest="dtypes",
        type=lambda text: [params.name for params in parse_dtypes(text)],
        default=[],
        help="list only faults of params of these dtypes",
    )
    scan.add_argument("--json", action="store_true", help="print everything as JSON")
    run = commands.add_parser(
        "run",
        help="run an unmodified script or module under the shim",
        usage="%(prog)s [-h] [-v] [--report FILE] [--require FILE] "
        "(SCRIPT | -m MODULE) [ARGUMENT ...]",
        description=_RUN,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("-v", "--verbose", action="store_true", help="log what is applied to stderr")
    run.add_argument("--report", metavar="FILE", help="write what was applied, and what it did")
    run.add_argument("--require", metavar="FILE", help="fail unless patches are as in FILE")
    program = run.add_mutually_exclusive_group(required=True)
    program.add_argument("script", metavar="SCRIPT", nargs="?", help="path of a Python file")
    program.add_argument("-m", metavar="MODULE", dest="module", help="name of a module or package")
    return parser, commands.choices


def _patch_or_fault(name: str) -> str:
    patch_id, dot, _ = name.partition(".")
    if patch_id in REMOVED:
        print(f"optax-dtypefix: Patch {patch_id!r} {REMOVED[patch_id]}", file=sys.stderr)
        return ""
    known: tuple[str, ...] = IDS
    if dot and patch_id in IDS:
        known = tuple(f"{patch_id}.{fault.id}" for fault in load(patch_id).faults)
    if name not in known:
        what, lists = ("patch", "status") if known is IDS else ("fault", f"doctor {patch_id}")
        function = name.removeprefix("optax.")
        patches = faults_of(f"optax.{function}", Release(TESTED[-1], tested=True))
        advice = f"Patches of {function}: {', '.join(patches)}." if patches else ""
        near = closest(name.lower(), known, cutoff=0.5)
        hint = advice or (
            f"Did you mean {near!r}?" if near else f"To list them, run `optax-dtypefix {lists}`."
        )
        raise argparse.ArgumentTypeError(f"Unknown {what} {name!r}. {hint}")
    return name


def _releases(text: str) -> list[Release]:
    # Also as pip and git write them: optax==0.2.3, v0.2.3.
    versions = [re.sub(r"^(optax)?(==|v)", "", "".join(word.split())) for word in text.split(",")]
    for version in versions:
        if not re.fullmatch(_VERSION, version):
            raise argparse.ArgumentTypeError(
                f"{version!r} is no release of optax. Write each in full, as in 0.2.3,{TESTED[-1]}"
            )
    return [Release(version, version in TESTED) for version in versions]


def _add_params(check: argparse.ArgumentParser) -> None:
    check.epilog = _CHECK_EPILOG
    check.set_defaults(params=parse_dtypes(USUAL))
    check.add_argument(
        "target", metavar="TARGET", type=parse_name, help="FILE.py:NAME or MODULE:NAME"
    )
    params = check.add_mutually_exclusive_group()
    params.add_argument(
        "--params",
        metavar="NAME=DTYPE[SHAPE],...",
        type=parse_own,
        help="params like yours; NAME may be dotted",
    )
    params.add_argument(
        "--dtype",
        metavar="DTYPE,...",
        dest="params",
        type=parse_dtypes,
        help=f"check a matrix, a vector and a scalar of each DTYPE; {USUAL} by default",
    )
    check.add_argument(
        "--x64",
        action="store_true",
        default=os.environ.get("JAX_ENABLE_X64", "").lower() in ("1", "true", "t", "yes", "on"),
        help="check in 64-bit mode; the default if JAX_ENABLE_X64 is set, or if DTYPE has 64 bits",
    )
