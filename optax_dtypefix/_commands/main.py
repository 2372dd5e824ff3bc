"""Run the command ``python -m optax_dtypefix``, also installed as ``optax-dtypefix``."""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import platform
import sys
import warnings
from typing import TYPE_CHECKING

from .. import OptaxDtypeFixError, OptaxDtypeFixWarning, State, __version__, status
from .._engine.release import version_of
from .._record import keep_record
from .._settings import SETTINGS, read_settings
from .._text import suggest, terminal_width
from ..patches import IDS
from .activate import ActivationError, activate, active_files, deactivate
from .colour import painter
from .check.results import compare
from .check.target import TargetError, parse_target
from .check.trees import USUAL, default_case, parse_case, parse_dtypes
from .doctor import diagnose
from .import_optax import import_optax
from .progress import progress_bar
from .run import run_module, run_script
from .worker import WorkerError

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = ("status", "doctor", "check", "audit", "run", "activate", "deactivate")
_RUN_OPTIONS = ("--report", "--require")
_CHECK_FAILED = 3
"""Exit code of ``check`` if it has no verdict; the verdicts are 0, 1 and 2."""

_DESCRIPTION = """\
Make the installed optax dtype-preserving. In a program, `import optax_dtypefix` is enough. This
command shows what the import does here, proves it, or runs a program that you cannot change.
"""

_EPILOG = """\
examples:
  optax-dtypefix status                     show which patches are applied here, and why
  optax-dtypefix doctor                     reproduce each fault on stock and on patched optax
  optax-dtypefix doctor multi_steps         show every detail of the faults of one patch
  optax-dtypefix check train.py:make_optimizer
                                            is my optimizer affected, and what fixes it?
  optax-dtypefix audit --only adam sgd      check transformations, on stock and on patched optax
  optax-dtypefix run train.py --lr 0.1      run an unmodified script under the shim
  optax-dtypefix run -m my.training --json  run an unmodified module with its own options
  optax-dtypefix run --report run.json train.py   write what was applied, and what it did
  optax-dtypefix run --require run.json train.py  fail unless the same is applied again
  optax-dtypefix activate                   patch optax in every Python of this environment

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
if a patch failed. The JSON can be required of a later run: `run --require FILE`.
"""

_DOCTOR = """\
Reproduce each fault of the installed optax on the stock and on the patched functions, in separate
processes. Show one line a patch; with PATCH, every detail of its faults. Run on the CPU
unless JAX_PLATFORMS is set. Exit with 1 if patched optax still has a fault, or if stock optax lacks
one that it should have.
"""

_CHECK = """\
Check your own optimizer on stock and on patched optax, in separate processes: dtypes, values, and
which patches it needs. TARGET is a transformation, or a function that takes no arguments and
returns one. The file or module is imported, not run as __main__.
"""

_CHECK_EPILOG = """\
exit code:
  0  stock optax is fine
  1  the optimizer is affected, and the patches fix it
  2  patched optax still has a problem
  3  nothing was checked: wrong usage, or no such optimizer

examples:
  optax-dtypefix check train.py:make_optimizer
  optax-dtypefix check my.package.training:tx --dtype bfloat16
  optax-dtypefix check train.py:tx --params "w=bfloat16[128,256],layer.b=float32[16]"
"""

_AUDIT = """\
Check the dtype contract on every public transformation of the installed optax, in 18 regimes of
dtypes and modes, with four kinds of learning rate, alone and inside MultiSteps, apply_if_finite and
inject_hyperparams. Compare stock optax, patched optax, and patched optax with the opt-in patch
every_transform. This takes minutes. Exit with 1 if a cell is broken that is not broken by design.
"""

_RUN = """\
Run an unmodified script or module under the shim, as `python SCRIPT ...` or `python -m MODULE ...`
would: same sys.argv, sys.path, exit code and traceback. Processes that the program starts with
multiprocessing are under the shim too; those that it starts with subprocess are not. SCRIPT may
also be a .pyc file, a zip archive or folder with a __main__.py, or - for stdin. All arguments after
SCRIPT or MODULE go to the program.

With --report, write what was applied and what each patch did: when optax is imported, and again at
exit. In FILE, %p stands for the process id and %h for the host; without them, the last process that
imported optax writes the file. With --require, `import optax` fails with the difference if what is
applied is not what FILE records.
"""

_ACTIVATE = """\
Write a .pth file into the site-packages of this Python. From then on, every Python of this
environment imports optax_dtypefix as soon as it imports optax: launchers, workers, subprocesses.
`python -S` does not read the file. The environment variables work as ever.
"""

_DEACTIVATE = """\
Remove the file that `activate` wrote.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
      argv: arguments without the name of the program; ``sys.argv[1:]`` if not given.

    Returns:
      The exit code. Usage errors, and exceptions of a program under ``run``, are raised.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    ours, theirs = _split(arguments)
    parser = _parser()
    if not ours:
        parser.print_help(sys.stderr)
        return 2
    if not ours[0].startswith("-") and ours[0] not in _COMMANDS:
        parser.error(f"unknown command {ours[0]!r}. {suggest(ours[0], _COMMANDS)}")
    options = _parse(parser, ours)
    if options.command == "run":
        return _run(options, theirs)
    if not _prepare_streams():
        return 1
    if options.command in ("activate", "deactivate"):
        return _activation(options.command)
    if SETTINGS.report:  # The report of a run, which this is not.
        keep_record(SETTINGS._replace(report=None))
    if importlib.util.find_spec("optax") is None:
        code = _no_optax(
            f"it is not installed for {sys.executable}. Run `python -m pip install optax`."
        )
        return _CHECK_FAILED if options.command == "check" else code
    try:
        if options.command == "check":
            return _check(options)
        if options.command == "audit":
            return _audit(options.only, options.json, options.svg)
        if options.command == "doctor":
            return _doctor(options.patches, as_json=options.json, verbose=options.verbose)
        return _status(as_json=options.json, verbose=options.verbose)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # As in ``| head``: the reader has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # No temporary folder, or a full disk.
        print(f"optax-dtypefix: {error}", file=sys.stderr)
        return 1


def _prepare_streams() -> bool:
    """Make the streams ready for our messages. Return whether there is a stdout."""
    if sys.stderr is None:  # As in ``2>&-``.
        sys.stderr = sys.stdout
    if sys.stdout is None:
        print("optax-dtypefix: stdout is closed, so there is nowhere to report.", file=sys.stderr)
        return False
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Messages may hold what a terminal cannot show.
    return True


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    if options.report or options.require:
        try:
            _keep_record(options.report, options.require)
        except OptaxDtypeFixError as error:
            print(f"optax-dtypefix run: {error}", file=sys.stderr)
            return 2
    try:
        if options.module is not None:
            return run_module(options.module, arguments)
        return run_script(options.script, arguments)
    finally:
        ended = sys.exc_info()[0] in (None, SystemExit)
        if options.report and ended and "optax" not in sys.modules:
            print(
                f"optax-dtypefix run: no report in {options.report}: this process did not import "
                f"optax.",
                file=sys.stderr,
            )


def _keep_record(report: str | None, require: str | None) -> None:
    """Set the variables, which the processes that the program starts inherit, and act on them."""
    for variable, path in (("OPTAX_DTYPEFIX_REPORT", report), ("OPTAX_DTYPEFIX_REQUIRE", require)):
        if path:
            os.environ[variable] = os.path.abspath(path)  # The program may change its folder.
    keep_record(read_settings(os.environ, IDS))


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    try:
        return parser.parse_args(arguments)
    except SystemExit as exit_:
        if arguments[0] == "check" and exit_.code:  # argparse means 2, which here is a verdict.
            exit_.code = _CHECK_FAILED
        raise


def _status(*, as_json: bool, verbose: bool) -> int:
    refusal = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptaxDtypeFixWarning)  # The table has the same text.
        try:
            import_optax()
        except OptaxDtypeFixError as error:  # Strict mode.
            refusal = error
        except Exception as error:  # A broken installation of optax or jax fails in its own way.
            return _no_optax(f"{type(error).__name__}: {error}")
    report = status()
    text = report.as_text(terminal_width(), verbose=verbose, paint=painter())
    active = active_files()
    for path, who in active.items():
        text += f"\n\nActive in every Python of this environment, by {path}\n{who}"
    as_dict = {**report.as_dict(), "active_files": active}
    print(json.dumps(as_dict, indent=2) if as_json else text, flush=True)
    failed = [patch.id for patch in report if patch.state is State.FAILED]
    if failed:
        print(f"\nFailed: {', '.join(failed)}. Their functions are unpatched.", file=sys.stderr)
    if refusal is not None:
        why = " (OPTAX_DTYPEFIX_STRICT=1)" if SETTINGS.strict else ""
        print(f"\n`import optax` raises an error{why}: {refusal}", file=sys.stderr)
    return 1 if failed or refusal is not None else 0


def _activation(command: str) -> int:
    try:
        print(activate() if command == "activate" else deactivate())
    except ActivationError as error:
        print(f"optax-dtypefix: {error}", file=sys.stderr)
        return 1
    return 0


def _doctor(ids: Sequence[str], *, as_json: bool, verbose: bool) -> int:
    for patch_id in ids:
        if patch_id not in IDS:
            print(f"Unknown patch {patch_id!r}. {suggest(patch_id, IDS)}", file=sys.stderr)
            return 2
    if sys.stderr.isatty():
        print("Reproducing each fault on stock and on patched optax ...", file=sys.stderr)
    try:
        with progress_bar("runs") as progress:
            diagnosis = diagnose(ids, progress)
    except WorkerError as error:
        return _no_optax(str(error))
    if ids:
        text = diagnosis.as_details()
    else:
        text = diagnosis.as_text(terminal_width(), verbose=verbose, paint=painter())
    print(diagnosis.as_json() if as_json else text, flush=True)
    return 0 if diagnosis.ok else 1


def _check(options: argparse.Namespace) -> int:
    cases = options.cases or [default_case(dtype) for dtype in USUAL]
    try:
        with progress_bar("checks") as progress:
            found = compare(options.target, cases, x64=options.x64, progress=progress)
    except TargetError as error:
        print(f"optax-dtypefix check: {error}", file=sys.stderr)
        return _CHECK_FAILED
    except WorkerError as error:
        _no_optax(str(error))
        return _CHECK_FAILED
    width = terminal_width() if sys.stdout.isatty() else None
    text = found.as_text(width, verbose=options.verbose)
    print(found.as_json() if options.json else text, flush=True)
    return found.verdict


def _audit(only: Sequence[str], as_json: bool, picture: str | None) -> int:
    from .audit.picture import draw
    from .audit.results import audit

    is_new = picture is not None and not os.path.exists(picture)
    try:
        if picture is not None:
            open(picture, "a", encoding="utf-8").close()  # Fail now, not in some minutes.
        with progress_bar("transformations") as progress:
            found = audit(only, progress)
    except (WorkerError, LookupError, OSError) as error:
        if is_new and picture is not None and os.path.exists(picture):
            os.remove(picture)
        if isinstance(error, WorkerError):
            return _no_optax(str(error))
        print(f"optax-dtypefix: {error}", file=sys.stderr)
        return 2
    if picture is not None:
        with open(picture, "w", encoding="utf-8") as file:
            file.write(draw([found.as_dict()]))
    print(found.as_json() if as_json else found.as_text(detailed=bool(only)), flush=True)
    return 0 if found.ok else 1


def _no_optax(why: str) -> int:
    print(f"optax-dtypefix: optax cannot be imported: {why}", file=sys.stderr)
    return 1


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split our arguments from those of the program under ``run``: argparse must not see them."""
    if arguments[:1] != ["run"]:
        return arguments, ()
    ours = 1
    while arguments[ours : ours + 1] and arguments[ours].partition("=")[0] in _RUN_OPTIONS:
        ours += 1 if "=" in arguments[ours] else 2
    ours += 2 if arguments[ours : ours + 1] in (["-m"], ["--"]) else 1
    return arguments[:ours], arguments[ours:]


def _parser() -> argparse.ArgumentParser:
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
    for name, summary, description in (
        ("status", "show which patches are applied to the installed optax, and why", _STATUS),
        ("doctor", "reproduce each fault on stock and on patched optax", _DOCTOR),
        ("activate", "patch optax in every Python of this environment", _ACTIVATE),
        ("deactivate", "undo `activate`", _DEACTIVATE),
    ):
        command = commands.add_parser(name, help=summary, description=description)
        if name in ("activate", "deactivate"):
            continue
        command.add_argument("--json", action="store_true", help="print everything as JSON")
        more = "reasons in full" if name == "status" else "one line a fault, with its messages"
        command.add_argument("-v", "--verbose", action="store_true", help=f"show {more}")
        if name == "doctor":
            command.add_argument("patches", metavar="PATCH", nargs="*", help="such as multi_steps")
    _add_check(commands)
    audit = commands.add_parser(
        "audit", help="check the contract on every transformation", description=_AUDIT
    )
    audit.add_argument("--json", action="store_true", help="print everything as JSON")
    audit.add_argument("--svg", metavar="FILE", help="draw the result")
    audit.add_argument(
        "--only", metavar="NAME", nargs="+", default=(), help="such as adam contrib.prodigy"
    )
    run = commands.add_parser(
        "run",
        help="run an unmodified script or module under the shim",
        usage="%(prog)s [-h] [--report FILE] [--require FILE] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description=_RUN,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("--report", metavar="FILE", help="write what was applied, and what it did")
    run.add_argument("--require", metavar="FILE", help="fail unless what FILE records is applied")
    program = run.add_mutually_exclusive_group(required=True)
    program.add_argument("script", metavar="SCRIPT", nargs="?", help="path of a Python file")
    program.add_argument("-m", metavar="MODULE", dest="module", help="name of a module or package")
    return parser


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check",
        help="check your own optimizer, and find the patches that it needs",
        description=_CHECK,
        epilog=_CHECK_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument(
        "target", metavar="TARGET", type=parse_target, help="FILE.py:NAME or MODULE:NAME"
    )
    params = check.add_mutually_exclusive_group()
    params.add_argument(
        "--params",
        metavar="NAME=DTYPE[SHAPE],...",
        dest="cases",
        type=parse_case,
        help="params like yours; NAME may be dotted",
    )
    params.add_argument(
        "--dtype",
        metavar="DTYPE,...",
        dest="cases",
        type=parse_dtypes,
        help=f"check a matrix, a vector and a scalar of each DTYPE; {','.join(USUAL)} by default",
    )
    check.add_argument(
        "--x64",
        action="store_true",
        default=os.environ.get("JAX_ENABLE_X64", "").lower() in ("1", "true", "t", "yes", "on"),
        help="check in 64-bit mode; so it is if JAX_ENABLE_X64 is set, or for DTYPE float64",
    )
    check.add_argument("--json", action="store_true", help="print everything as JSON")
    check.add_argument("-v", "--verbose", action="store_true", help="show every problem")
