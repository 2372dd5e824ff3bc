"""The command: ``python -m optax_dtypefix``, also installed as ``optax-dtypefix``."""

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
from .doctor import diagnose
from .progress import progress_bar
from .reproducers import import_optax
from .run import run_module, run_script
from .worker import WorkerError

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = ("status", "doctor", "audit", "run")

_DESCRIPTION = """\
Makes the installed optax dtype-preserving. In a program, `import optax_dtypefix` does it; this
command shows what that does here, proves it, or does it to a program that you cannot change.
"""

_EPILOG = """\
examples:
  optax-dtypefix status                     what is applied to the installed optax, and why
  optax-dtypefix doctor                     each fault on stock optax, and gone on the patched one
  optax-dtypefix doctor multi_steps         those of one patch, with all that is said of them
  optax-dtypefix audit --only adam sgd      the contract on transformations, stock and patched
  optax-dtypefix run train.py --lr 0.1      an unmodified script under the shim
  optax-dtypefix run -m my.training --json  an unmodified module; its options are its own

environment:
  OPTAX_DTYPEFIX=off                        switch the whole shim off
  OPTAX_DTYPEFIX_DISABLE=multi_steps,...    switch patches off; all: every one
  OPTAX_DTYPEFIX_ONLY=multi_steps,...       apply these alone
  OPTAX_DTYPEFIX_ENABLE=float32_moments,... apply these opt-in patches too
  OPTAX_DTYPEFIX_STRICT=1                   fail where a patch cannot be applied
  OPTAX_DTYPEFIX_LOG=info                   say what is done; debug: say more
"""

_STATUS = """\
Imports optax under the shim and tells, patch by patch, what was applied, what was not, and why.
Exits with 1 when a patch failed.
"""

_DOCTOR = """\
Shows each fault that the installed optax has, on the stock functions and on the patched ones, each
in a process of its own; with PATCH, only those of these patches, and all that is said of them. Runs
on the CPU unless JAX_PLATFORMS says otherwise. Exits with 1 when a fault is still there under the
shim, or when stock optax does not show it.
"""

_AUDIT = """\
Measures the dtype contract on every public transformation of the installed optax: in 13 regimes of
dtypes and modes, with the learning rate in four guises, alone and inside MultiSteps,
apply_if_finite and inject_hyperparams; on stock optax, on the patched one, and with the opt-in
patch every_transform. Takes minutes. Exits with 1 when a cell is broken that is not so by design.
"""

_RUN = """\
Runs an unmodified script or module under the shim, as `python SCRIPT ...` or `python -m MODULE ...`
would: same sys.argv, sys.path, exit code and traceback. Processes that it starts with
multiprocessing are under the shim too. All that follows SCRIPT or MODULE belongs to the program.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
      argv: arguments without the program's name; those of the process if not given.

    Returns:
      The exit code. Usage errors, and what a program under ``run`` raises, come as exceptions.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    ours, theirs = _split(arguments)
    parser = _parser()
    if not ours:
        parser.print_help(sys.stderr)
        return 2
    if not ours[0].startswith("-") and ours[0] not in _COMMANDS:
        parser.error(f"there is no command {ours[0]!r}: {suggest(ours[0], _COMMANDS)}")
    options = parser.parse_args(ours)
    if options.command == "run":
        if options.module is not None:
            return run_module(options.module, theirs)
        return run_script(options.script, theirs)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Messages may hold what a terminal cannot show.
    if importlib.util.find_spec("optax") is None:
        return _no_optax(f"it is not installed for {sys.executable}; python -m pip install optax")
    try:
        if options.command == "audit":
            return _audit(options.only, options.json, options.svg)
        if options.command == "doctor":
            return _doctor(options.patches, options.json)
        return _status(options.json)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # As in ``| head``: who reads has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _status(as_json: bool) -> int:
    trouble = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptaxDtypeFixWarning)  # The table says it all.
        try:
            import_optax()
        except OptaxDtypeFixError as error:  # Strict mode.
            trouble = error
        except Exception as error:  # A broken installation of optax or jax fails in its own way.
            return _no_optax(f"{type(error).__name__}: {error}")
    report = status()
    # Whole lines to what is not a terminal: it may be grep.
    text = report.as_text(terminal_width() if sys.stdout.isatty() else None)
    print(report.as_json() if as_json else text, flush=True)
    failed = [patch.id for patch in report if patch.state is State.FAILED]
    if failed:
        print(f"\nFailed: {', '.join(failed)}. Stock optax stays in place there.", file=sys.stderr)
    if trouble is not None:
        print(f"\nOPTAX_DTYPEFIX_STRICT=1 makes this an error: {trouble}", file=sys.stderr)
    return 1 if failed or trouble is not None else 0


def _doctor(ids: Sequence[str], as_json: bool) -> int:
    for patch_id in ids:
        if patch_id not in IDS:
            print(f"there is no patch {patch_id!r}: {suggest(patch_id, IDS)}", file=sys.stderr)
            return 2
    if sys.stderr.isatty():
        print("Showing each fault on stock and on patched optax ...", file=sys.stderr)
    try:
        diagnosis = diagnose(ids)
    except WorkerError as error:
        return _no_optax(str(error))
    text = diagnosis.as_details() if ids else diagnosis.as_text(terminal_width())
    print(diagnosis.as_json() if as_json else text, flush=True)
    return 0 if diagnosis.ok else 1


def _audit(only: Sequence[str], as_json: bool, picture: str | None) -> int:
    from .audit.picture import draw
    from .audit.results import audit

    is_new = picture is not None and not os.path.exists(picture)
    try:
        if picture is not None:
            open(picture, "a", encoding="utf-8").close()  # Fails now rather than in some minutes.
        with progress_bar() as progress:
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
    """Our arguments, and those of the program under ``run``, which argparse must not see."""
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
        ("status", "tell what is applied to the installed optax, and why", _STATUS),
        ("doctor", "show each fault on stock optax, and gone on the patched one", _DOCTOR),
    ):
        command = commands.add_parser(name, help=summary, description=description)
        command.add_argument("--json", action="store_true", help="all of it, as JSON")
        if name == "doctor":
            command.add_argument("patches", metavar="PATCH", nargs="*", help="as in: multi_steps")
    audit = commands.add_parser(
        "audit", help="measure the contract on every transformation", description=_AUDIT
    )
    audit.add_argument("--json", action="store_true", help="all of it, as JSON")
    audit.add_argument("--svg", metavar="FILE", help="draw a picture of it")
    audit.add_argument(
        "--only", metavar="NAME", nargs="+", default=(), help="as in: adam contrib.prodigy"
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
