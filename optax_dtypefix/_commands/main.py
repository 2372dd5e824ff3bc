"""Run the command ``python -m optax_dtypefix``, also installed as ``optax-dtypefix``."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
import warnings
from typing import TYPE_CHECKING

from .. import OptaxDtypeFixError, OptaxDtypeFixWarning, State, status
from .._api import RECORD
from .._record import read_record
from .._settings import SETTINGS
from .._text import suggest, terminal_width
from ..patches import IDS
from .activate import ActivationError, activate, active_files, deactivate
from .arguments import CHECK_FAILED, parse
from .check.results import compare
from .check.target import TargetError
from .check.trees import USUAL, default_case
from .colour import painter
from .doctor import diagnose
from .import_optax import import_optax
from .progress import progress_bar
from .run import run
from .worker import WorkerError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
      argv: arguments without the name of the program; ``sys.argv[1:]`` if not given.

    Returns:
      The exit code. Usage errors, and exceptions of a program under ``run``, are raised.
    """
    options, theirs = parse(sys.argv[1:] if argv is None else list(argv))
    if options.command == "run":
        return _run(options, theirs)
    if not _prepare_streams():
        return 1
    if options.command in ("activate", "deactivate"):
        return _activation(options.command)
    if RECORD:  # The report is that of a run, which this is not.
        RECORD.write_nothing()
    if importlib.util.find_spec("optax") is None:
        why = f"it is not installed for {sys.executable}. Run `python -m pip install optax`."
        return _no_optax(why, CHECK_FAILED if options.command == "check" else 1)
    try:
        return _report(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # As in ``| head``: the reader has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # No temporary folder, or a full disk.
        print(f"optax-dtypefix: {error}", file=sys.stderr)
        return 1


def _report(options: argparse.Namespace) -> int:
    if options.command == "check":
        return _check(options)
    if options.command == "audit":
        return _audit(options.only, options.json, options.svg)
    if options.command == "doctor":
        return _doctor(options.patches, as_json=options.json, verbose=options.verbose)
    return _status(as_json=options.json, verbose=options.verbose)


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
    asked = {"OPTAX_DTYPEFIX_REPORT": options.report, "OPTAX_DTYPEFIX_REQUIRE": options.require}
    # Absolute: the program may change its folder.
    variables = {name: os.path.abspath(path) for name, path in asked.items() if path}
    try:
        if options.require:
            read_record(variables["OPTAX_DTYPEFIX_REQUIRE"])
    except OptaxDtypeFixError as error:
        print(f"optax-dtypefix run: {error}", file=sys.stderr)
        return 2
    program = ["--", options.script] if options.module is None else ["-m", options.module]
    return run([*program, *arguments], variables)


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
        return CHECK_FAILED
    except WorkerError as error:
        return _no_optax(str(error), CHECK_FAILED)
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


def _no_optax(why: str, code: int = 1) -> int:
    print(f"optax-dtypefix: optax cannot be imported: {why}", file=sys.stderr)
    return code
