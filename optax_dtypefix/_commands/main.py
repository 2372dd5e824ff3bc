"""Run the command ``python -m optax_dtypefix``, also installed as ``optax-dtypefix``."""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import platform
import sys
import warnings
from typing import TYPE_CHECKING

from .. import OptaxDtypeFixError, OptaxDtypeFixWarning, State, __version__, status
from .._engine.release import version_of
from .._text import suggest, terminal_width
from ..patches import IDS
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

_COMMANDS = ("status", "doctor", "check", "audit", "run")
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

environment:
  OPTAX_DTYPEFIX=off                        switch the whole shim off
  OPTAX_DTYPEFIX_DISABLE=multi_steps,...    switch patches off; `all` switches all off
  OPTAX_DTYPEFIX_ONLY=multi_steps,...       apply only these patches
  OPTAX_DTYPEFIX_ENABLE=float32_moments,... apply these opt-in patches too
  OPTAX_DTYPEFIX_STRICT=1                   raise an error if a patch cannot be applied
  OPTAX_DTYPEFIX_LOG=info                   log each decision; `debug` logs more
"""

_STATUS = """\
Import optax under the shim, and report for each patch whether it was applied, and why. Exit with 1
if a patch failed.
"""

_DOCTOR = """\
Reproduce each fault of the installed optax on the stock and on the patched functions, in separate
processes. With PATCH, show only the faults of these patches, with every detail. Run on the CPU
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
multiprocessing are under the shim too. All arguments after SCRIPT or MODULE go to the program.
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
        if options.module is not None:
            return run_module(options.module, theirs)
        return run_script(options.script, theirs)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Messages may hold what a terminal cannot show.
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
            return _doctor(options.patches, options.json)
        return _status(options.json)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # As in ``| head``: the reader has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    try:
        return parser.parse_args(arguments)
    except SystemExit as exit_:
        if arguments[0] == "check" and exit_.code:  # argparse means 2, which here is a verdict.
            exit_.code = _CHECK_FAILED
        raise


def _status(as_json: bool) -> int:
    strict_error = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptaxDtypeFixWarning)  # The table has the same text.
        try:
            import_optax()
        except OptaxDtypeFixError as error:  # Strict mode.
            strict_error = error
        except Exception as error:  # A broken installation of optax or jax fails in its own way.
            return _no_optax(f"{type(error).__name__}: {error}")
    report = status()
    # Print whole lines if this is not a terminal: the reader may be grep.
    text = report.as_text(terminal_width() if sys.stdout.isatty() else None)
    print(report.as_json() if as_json else text, flush=True)
    failed = [patch.id for patch in report if patch.state is State.FAILED]
    if failed:
        print(f"\nFailed: {', '.join(failed)}. Their functions are unpatched.", file=sys.stderr)
    if strict_error is not None:
        print(f"\nOPTAX_DTYPEFIX_STRICT=1 makes this an error: {strict_error}", file=sys.stderr)
    return 1 if failed or strict_error is not None else 0


def _doctor(ids: Sequence[str], as_json: bool) -> int:
    for patch_id in ids:
        if patch_id not in IDS:
            print(f"Unknown patch {patch_id!r}. {suggest(patch_id, IDS)}", file=sys.stderr)
            return 2
    if sys.stderr.isatty():
        print("Reproducing each fault on stock and on patched optax ...", file=sys.stderr)
    try:
        diagnosis = diagnose(ids)
    except WorkerError as error:
        return _no_optax(str(error))
    text = diagnosis.as_details() if ids else diagnosis.as_text(terminal_width())
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
    ours = 3 if arguments[1:2] in (["-m"], ["--"]) else 2
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
    ):
        command = commands.add_parser(name, help=summary, description=description)
        command.add_argument("--json", action="store_true", help="print everything as JSON")
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
        usage="%(prog)s [-h] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description=_RUN,
    )
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
